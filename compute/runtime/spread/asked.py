"""How many processes share the steps of a training, as one text says it: ``data(2)``, ``pipeline(2)``, ``auto``."""

import os
from dataclasses import dataclass
from typing import Final, cast

from coterie.calls import Parameter, read_call
from coterie.errors import ConfigurationError

ALONE: Final = "data(1)"
_PROCESSES: Final = (Parameter("processes", 1, most=256),)
_RULES = {"auto": (), "data": _PROCESSES, "pipeline": _PROCESSES}


@dataclass(frozen=True)
class Parallel:
    """processes: how many share each step. measured: whether as many only if their steps turn out quicker than those of
    one. layers: whether each has a part of the layers, and not of the rows.
    """

    processes: int = 1
    measured: bool = False
    layers: bool = False


def read_parallel(text: str, threads: int) -> Parallel:
    """What a text asks for. ``auto`` is a process for every ``threads`` of the cores that this process may use.

    threads: of each process. Raises ConfigurationError for a text that is not ``auto``, ``data(n)`` or ``pipeline(n)``.
    """

    def refuse(reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"parallel={str(text)[:64]!r} cannot be used: {reason}.",
            hint="Say data(n) for n processes that share the rows, pipeline(n) for n that share the layers, auto for as"
            " many as the cores allow, or leave it out for one.",
        )

    if not isinstance(cast(object, text), str):
        raise refuse(f"it is a {type(text).__name__}, not a text")
    call = read_call(text, _RULES, refuse)
    if call.name == "auto":
        return Parallel(max(1, _cores() // threads), measured=True)
    return Parallel(int(call.numbers["processes"]), layers=call.name == "pipeline")


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
