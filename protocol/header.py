"""The header of an update: who made it, from what, and what its sections are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from coterie import errors
from coterie.protocol.canonical import LARGEST_INTEGER
from coterie.protocol.layout import Slice

FORMAT = "coterie-update-1"
Kind = Literal["update", "accumulator"]
LONGEST_TEXT = 128
MOST_SECTIONS = 256
MOST_SLICES = 2000
"""Slices that a header has room for, of all sections together."""


@dataclass(frozen=True)
class SectionEntry:
    """One section as the header lists it: its name, the codec of its payload, its number of elements.

    slices: of an update that covers a part of the section only, the (start, stop) of the section's elements that the
        payload holds, rising and apart.
    coverage: of an accumulator, whose payload holds every element, the weight of those of its clients that cover no
        more than some slices.
    """

    name: str
    codec: str
    length: int
    slices: tuple[Slice, ...] = ()
    coverage: Mapping[tuple[Slice, ...], int] = field(default_factory=dict[tuple[Slice, ...], int])

    def to_json(self) -> dict[str, Any]:
        """``{"name", "codec", "length"}``, with ``slices`` or ``coverage`` where there are some."""
        found: dict[str, Any] = {"name": self.name, "codec": self.codec, "length": self.length}
        if self.slices:
            found["slices"] = [list(pair) for pair in self.slices]
        if self.coverage:
            found["coverage"] = [
                {"weight": weight, "slices": [list(pair) for pair in slices]}
                for slices, weight in sorted(self.coverage.items())
            ]
        return found


@dataclass(frozen=True, kw_only=True)
class UpdateHeader:
    """Who made an update from what.

    task, plan: ids.
    base: SHA-256 of the model version trained from.
    weight: examples that count.
    steps: local steps done.
    kind: an ``accumulator`` is what an edge aggregator made of the updates of `clients` clients: float64 sums, those of
        weighted means already multiplied by the weights, which add up to ``weight``.
    Raises errors.UpdateRefused (``bad_weight``, ``bad_steps``, ``bad_clients``).
    """

    task: str
    plan: str
    base: str
    weight: int
    steps: int
    sections: tuple[SectionEntry, ...]
    kind: Kind = "update"
    clients: int = 1

    def __post_init__(self) -> None:
        for name, value in (("weight", self.weight), ("steps", self.steps), ("clients", self.clients)):
            if not _is_whole(value):
                raise errors.UpdateRefused(
                    f"The {name} must be a whole number from 0 to 2**53 - 1; got {str(value)[:32]}.", code=f"bad_{name}"
                )
        if self.clients < 1 or (self.kind == "update" and self.clients != 1):
            raise errors.UpdateRefused(
                f"An {self.kind} cannot be of {self.clients} clients; an update is of one, an accumulator of one or "
                "more.",
                code="bad_clients",
            )

    def section(self, name: str) -> SectionEntry:
        """The entry of that name. Raises KeyError."""
        for entry in self.sections:
            if entry.name == name:
                return entry
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """``{"format", "kind", "task", "plan", "base", "weight", "steps", "clients", "sections": [{"name", "codec",
        "length"}]}``; see `SectionEntry.to_json` for sections that are covered in part.
        """
        return {
            "format": FORMAT,
            "kind": self.kind,
            "task": self.task,
            "plan": self.plan,
            "base": self.base,
            "weight": self.weight,
            "steps": self.steps,
            "clients": self.clients,
            "sections": [entry.to_json() for entry in self.sections],
        }

    @staticmethod
    def from_json(value: object) -> "UpdateHeader":
        """The inverse of `to_json`. Raises errors.UpdateRefused (``wrong_format``, ``bad_weight``, ``bad_steps``)."""
        fields = cast(dict[str, Any], value) if isinstance(value, dict) else {}
        if fields.get("format") != FORMAT:
            raise _malformed(f"its format is {str(fields.get('format'))[:64]!r}, not {FORMAT!r}")
        expected = {"format", "kind", "task", "plan", "base", "weight", "steps", "clients", "sections"}
        if set(fields) != expected:
            raise _malformed(f"it must have exactly the fields {', '.join(sorted(expected))}")
        if fields["kind"] not in get_args(Kind):
            raise _malformed(f"its kind must be one of {', '.join(get_args(Kind))}")
        sections = fields["sections"]
        if not isinstance(sections, list) or not 0 < len(cast(list[object], sections)) <= MOST_SECTIONS:
            raise _malformed(f"it must list 1 to {MOST_SECTIONS} sections")
        return UpdateHeader(
            task=_text(fields["task"], "task"),
            plan=_text(fields["plan"], "plan"),
            base=_text(fields["base"], "base"),
            weight=fields["weight"],
            steps=fields["steps"],
            kind=fields["kind"],
            clients=fields["clients"],
            sections=tuple(_entry(item) for item in cast(list[object], sections)),
        )


def _entry(value: object) -> SectionEntry:
    fields = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    if not {"name", "codec", "length"} <= set(fields) <= {"name", "codec", "length", "slices", "coverage"}:
        raise _malformed("each section has name, codec and length, and may have slices or coverage")
    if not _is_whole(fields["length"]):
        raise _malformed("each section must have a whole length")
    slices = _slices(fields["slices"], fields["length"]) if "slices" in fields else ()
    if "slices" in fields and not slices:
        raise _malformed("slices must name some elements")
    return SectionEntry(
        _text(fields["name"], "section name"),
        _text(fields["codec"], "codec"),
        fields["length"],
        slices,
        _coverage(fields.get("coverage"), fields["length"]),
    )


def _coverage(value: object, length: int) -> dict[tuple[Slice, ...], int]:
    if value is None:
        return {}
    found: dict[tuple[Slice, ...], int] = {}
    for item in cast(list[object], value) if isinstance(value, list) else [None]:
        fields = cast(dict[str, Any], item) if isinstance(item, dict) else {}
        if set(fields) != {"weight", "slices"} or not _is_whole(fields["weight"]) or not fields["weight"]:
            raise _malformed("a section's coverage lists weights, whole and above 0, each with slices")
        slices = _slices(fields["slices"], length)
        if slices in found:
            raise _malformed("a section's coverage names the same slices twice")
        found[slices] = fields["weight"]
    return found


def _slices(value: object, length: int) -> tuple[Slice, ...]:
    """Pairs of whole numbers that rise, within the section."""
    found: list[Slice] = []
    last = 0
    for item in cast(list[object], value) if isinstance(value, list) else [None]:
        pair = cast(list[Any], item) if isinstance(item, list) else []
        if len(pair) != 2 or not all(_is_whole(edge) for edge in pair) or not last <= pair[0] < pair[1] <= length:
            raise _malformed(
                f"slices must be pairs [start, stop] that rise within the {length} elements of the section"
            )
        found.append((pair[0], pair[1]))
        last = pair[1]
    return tuple(found)


def _text(value: object, name: str) -> str:
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= LONGEST_TEXT
        or not value.isascii()
        or not value.isprintable()
    ):
        raise _malformed(f"its {name} must be 1 to {LONGEST_TEXT} printable ASCII characters")
    return value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_INTEGER


def _malformed(why: str) -> errors.UpdateRefused:
    return errors.UpdateRefused(f"The update's header is malformed: {why}.", code="wrong_format")
