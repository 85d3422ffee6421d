"""A usable update, as every fold takes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from coterie.protocol.arrays import ArraysByName
from coterie.protocol.layout import Slice
from coterie.protocol.sections import SectionSpec
from coterie.protocol.update import Update

Slices = tuple[Slice, ...]
"""Elements of a section, as (start, stop), rising and apart."""


@dataclass(frozen=True, kw_only=True)
class LocalUpdate:
    """An update that never was bytes, of which each number has been looked at where it was made.

    slices: of sections of which it covers a part only; their arrays hold just that part.
    refused: why there is none.
    """

    task: str
    weight: int
    steps: int = 0
    sections: ArraysByName = field(default_factory=dict[str, npt.NDArray[Any]], repr=False)
    slices: Mapping[str, Slices] = field(default_factory=dict[str, Slices])
    refused: str | None = None


@dataclass(frozen=True, kw_only=True)
class CountedUpdate:
    """An update that counts.

    weight: of the client, as capped, or of an accumulator's clients together.
    freshness: what the weight is multiplied by because the update lags.
    base: the older version that it was trained on, None for the round's own.
    clients: of how many it is.
    summed: whether it is an accumulator, whose values hold its weights already.
    silent: whether its values cannot be used, so that it counts as zeros.
    sections: its values, where they were kept; else they are read from `update`.
    slices: of sections that it covers in part.
    coverage: of an accumulator's sections, the weight of those of its clients that cover no more than these slices.
    """

    task: str
    weight: float
    freshness: float = 1.0
    base: str | None = None
    clients: int = 1
    steps: int = 0
    summed: bool = False
    silent: bool = False
    sections: ArraysByName = field(default_factory=dict[str, npt.NDArray[Any]], repr=False)
    slices: Mapping[str, Slices] = field(default_factory=dict[str, Slices])
    coverage: Mapping[str, Mapping[Slices, float]] = field(default_factory=dict[str, Mapping[Slices, float]])
    update: Update | None = field(default=None, repr=False)

    @property
    def whole(self) -> bool:
        """Whether it covers all of every section."""
        return not self.slices and not self.coverage

    def values(self, name: str) -> npt.NDArray[Any]:
        """The values of a section, of its part where it covers no more."""
        if name in self.sections or self.update is None:
            return self.sections[name]
        return self.update.decode(name)

    def chunks(self, specs: Sequence[SectionSpec]) -> "list[tuple[int, npt.NDArray[Any]]]":
        """Its values of these sections as those of one vector: (start, elements), the covered ones once."""
        found: list[tuple[int, npt.NDArray[Any]]] = []
        at = 0
        for spec in specs:
            values, place = self.values(spec.name), 0
            for start, stop in self.slices.get(spec.name, ((0, spec.length),)):
                found.append((at + start, values[place : place + stop - start]))
                place += stop - start
            at += spec.length
        return found
