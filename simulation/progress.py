"""A line of progress for whoever simulates from Python at a terminal."""

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO


def progress(stream: TextIO) -> Callable[[Mapping[str, Any]], None]:
    """A listener that keeps one line on a terminal: the round, and what its evaluation measured."""

    def show(event: Mapping[str, Any]) -> None:
        if event.get("event") == "finished":
            print(f"\r\033[KEnded: {event.get('reason')}, {event.get('seconds', 0.0):.1f} s.", file=stream, flush=True)
            return
        measured: Mapping[str, float | None] = event.get("metrics") or {}
        values = [
            f"{name} {value:.4g}" for name, value in measured.items() if value is not None and math.isfinite(value)
        ]
        state = "" if event.get("state") == "committed" else f" {event.get('cause') or event.get('state')}"
        print(f"\r\033[KRound {event.get('round')}{state}  {'  '.join(values[:6])}", end="", file=stream, flush=True)

    return show


def shown_by_default() -> Callable[[Mapping[str, Any]], None]:
    """The listener where nobody has named one: `progress` on a terminal, silence elsewhere."""
    return progress(sys.stderr) if sys.stderr.isatty() else lambda event: None
