"""The header of an update: who made it, from what, and what its sections are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, GetPydanticSchema, PlainSerializer, SkipValidation
from pydantic_core.core_schema import no_info_after_validator_function

from coterie import errors
from coterie.protocol.canonical import LARGEST_INTEGER
from coterie.protocol.conversion import UnlessEmpty, to_json
from coterie.protocol.layout import Slice
from coterie.protocol.wire import Positive, Whole

FORMAT: Final = "coterie-update-1"
PayloadKind = Literal["update", "accumulator"]
LONGEST_TEXT = 128
MOST_SECTIONS = 256
MOST_SLICES = 2000
"""Slices that a header has room for, of all sections together."""


_Text: TypeAlias = Annotated[str, Field(pattern=f"^[ -~]{{1,{LONGEST_TEXT}}}$")]


@dataclass(frozen=True)
class _Covered:
    weight: Positive
    slices: tuple[Slice, ...]


def _by_slices(parts: tuple[_Covered, ...]) -> dict[tuple[Slice, ...], int]:
    found = {part.slices: part.weight for part in parts}
    if len(found) < len(parts):
        raise ValueError("it names the same slices twice")
    return found


def _as_list(coverage: Mapping[tuple[Slice, ...], int]) -> list[dict[str, Any]]:
    return [to_json(_Covered(weight, slices)) for slices, weight in coverage.items()]


# No key of a JSON object can be slices, so it is a list there.
_Coverage: TypeAlias = Annotated[
    Mapping[tuple[Slice, ...], int],
    GetPydanticSchema(
        lambda _, schema_of: no_info_after_validator_function(_by_slices, schema_of(tuple[_Covered, ...]))
    ),
    PlainSerializer(_as_list),
]


@dataclass(frozen=True)
class SectionEntry:
    """One section as the header lists it: its name, the codec of its payload, its number of elements.

    slices: of an update that covers a part of the section only, the (start, stop) of the section's elements that the
        payload holds, rising and apart.
    coverage: of an accumulator, whose payload holds every element, the weight of those of its clients that cover no
        more than some slices.
    """

    name: _Text
    codec: _Text
    length: Whole
    slices: Annotated[tuple[Slice, ...], UnlessEmpty] = ()
    coverage: Annotated[_Coverage, UnlessEmpty] = field(default_factory=dict[tuple[Slice, ...], int])

    def __post_init__(self) -> None:
        for slices in (self.slices, *self.coverage):
            edges = [0, *(edge for pair in slices for edge in pair), self.length]
            if edges != sorted(edges) or any(start == stop for start, stop in slices):
                raise errors.UpdateRefused(
                    f"The slices of section {self.name[:LONGEST_TEXT]!r} must be pairs [start, stop] that rise within "
                    f"its {self.length} elements.",
                    code="wrong_format",
                )


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

    task: _Text
    plan: _Text
    base: _Text
    weight: Annotated[int, SkipValidation]
    steps: Annotated[int, SkipValidation]
    sections: Annotated[tuple[SectionEntry, ...], Field(min_length=1, max_length=MOST_SECTIONS)]
    kind: PayloadKind = "update"
    clients: Annotated[int, SkipValidation] = 1
    format: Literal["coterie-update-1"] = field(default=FORMAT, repr=False)

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


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_INTEGER
