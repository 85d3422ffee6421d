"""What every benchmark prints: one line a figure, as JSON or for people, and whether its budget is kept.

A line of JSON is an object with just these fields:

    case     what was measured
    figure   the number; null where there is none
    unit     of the figure, and of the peer's
    peer     {"name": what else was measured in the same run, "figure": its number}; null without one
    ratio    the figure over the peer's; null without one
    budget   {"of": "figure" or "ratio", "bound": "at most" or "at least", "limit": a number}; null without one
    met      whether the budget is kept; null without one, and where the peer that it needs is absent
    details  what else was found, by name

This module needs the standard library alone: scripts load it before they say how many threads NumPy has.
"""

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

Of = Literal["figure", "ratio"]
Bound = Literal["at most", "at least"]
FIELDS: Final = ("case", "figure", "unit", "peer", "ratio", "budget", "met", "details")
WIDTH: Final = 120
_VERDICTS: Final = {True: "met", False: "MISSED", None: "not judged"}


@dataclass(frozen=True)
class Peer:
    """What a figure is measured against, in the same run and the same unit. figure: None where it gave none."""

    name: str
    figure: float | None


@dataclass(frozen=True)
class Budget:
    """A number to keep. of: whether it bounds the figure, or its ratio to the peer's."""

    limit: float
    bound: Bound
    of: Of = "figure"


def at_most(limit: float, of: Of = "figure") -> Budget:
    """A budget above which it is missed."""
    return Budget(limit, "at most", of)


def at_least(limit: float, of: Of = "figure") -> Budget:
    """A budget below which it is missed."""
    return Budget(limit, "at least", of)


@dataclass(frozen=True)
class Line:
    """One figure of a benchmark; see the module. details: numbers and words by name, in plain JSON types."""

    case: str
    figure: float | None
    unit: str
    peer: Peer | None = None
    budget: Budget | None = None
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def ratio(self) -> float | None:
        """The figure over the peer's; None where either is missing or the peer's is zero."""
        if self.figure is None or self.peer is None or not self.peer.figure:
            return None
        return self.figure / self.peer.figure

    @property
    def met(self) -> bool | None:
        """Whether the budget is kept: never by a figure that is NaN. None where there is nothing to judge."""
        if self.budget is None:
            return None
        found = self.figure if self.budget.of == "figure" else self.ratio
        if found is None:
            return None
        return bool(found <= self.budget.limit if self.budget.bound == "at most" else found >= self.budget.limit)


def to_json(line: Line) -> str:
    """A line as JSON, on one line of text."""
    peer, budget = line.peer, line.budget
    whole = {
        "case": line.case,
        "figure": line.figure,
        "unit": line.unit,
        "peer": None if peer is None else {"name": peer.name, "figure": peer.figure},
        "ratio": line.ratio,
        "budget": None if budget is None else {"of": budget.of, "bound": budget.bound, "limit": budget.limit},
        "met": line.met,
        "details": dict(line.details),
    }
    return json.dumps(_finite(whole), allow_nan=False)


def read(text: str) -> Line:
    """A line from its JSON, as a benchmark's own process tells it to the one that started it."""
    found = cast(dict[str, Any], json.loads(text))
    if tuple(found) != FIELDS:
        raise ValueError(f"A line of a benchmark has the fields {', '.join(FIELDS)}, in this order; this is {text!r}.")
    peer, budget = found["peer"], found["budget"]
    return Line(
        found["case"],
        found["figure"],
        found["unit"],
        peer=None if peer is None else Peer(**peer),
        budget=None if budget is None else Budget(**budget),
        details=found["details"],
    )


def to_text(line: Line) -> str:
    """A line for people; what does not fit stands indented below."""
    parts = [f"{line.case}: {_number(line.figure)} {line.unit}"]
    if line.peer is not None:
        parts.append(f"{line.peer.name} {_number(line.peer.figure)}, ratio {_number(line.ratio)}")
    if line.budget is not None:
        what = "ratio " if line.budget.of == "ratio" else ""
        parts.append(f"budget {what}{line.budget.bound} {line.budget.limit:.4g}: {_VERDICTS[line.met]}")
    if line.details:
        parts.append(", ".join(f"{name}={_shown(value)}" for name, value in line.details.items()))
    return textwrap.fill("; ".join(parts), WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def show(line: Line, *, as_json: bool) -> None:
    """Print a line, at once."""
    print(to_json(line) if as_json else to_text(line), flush=True)


def show_row(cells: Sequence[str], widths: Sequence[int]) -> None:
    """Print one row of a table for people, at once: where figures are read across and down."""
    print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip(), flush=True)


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else "-"
    if isinstance(value, Mapping):
        inner = cast(Mapping[Any, Any], value)
        return "(" + ", ".join(f"{name}={_shown(each)}" for name, each in inner.items()) + ")"
    if isinstance(value, list | tuple):
        items = cast(Sequence[Any], value)
        return "[" + ", ".join(map(_shown, items)) + "]"
    return "-" if value is None else str(value)


def _finite(value: Any) -> Any:
    """The same with null for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        inner = cast(Mapping[Any, Any], value)
        return {str(name): _finite(each) for name, each in inner.items()}
    if isinstance(value, list | tuple):
        items = cast(Sequence[Any], value)
        return [_finite(each) for each in items]
    return value
