"""Which weight stands behind each element of a sum: one number for those who cover all of it, and one for each set of
slices that others cover. Most updates cover everything, and need no vector of weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from coterie.aggregation.fold.part import CountedUpdate, Slices
from coterie.aggregation.reducers import Vector
from coterie.protocol.layout import join_slices
from coterie.protocol.sections import SectionSpec


@dataclass
class Coverage:
    """The weight behind each number of a vector.

    whole: the weight of those that cover everything.
    parts: by the slices that are covered, in elements of the vector, the weight of those that cover just these.
    """

    whole: float = 0.0
    parts: dict[Slices, float] = field(default_factory=dict[Slices, float])

    def take(self, part: CountedUpdate, specs: Sequence[SectionSpec]) -> None:
        """Count an update.

        specs: the sections that make up the vector.
        """
        weight = part.weight * part.freshness
        if part.whole:
            self.whole += weight
            return
        if part.coverage:
            self._count_accumulator(part, specs)
            return
        covered: list[tuple[int, int]] = []
        for at, spec in _with_offsets(specs):
            covered += [(at + a, at + b) for a, b in part.slices.get(spec.name, ((0, spec.length),))]
        self._count(join_slices(covered), weight)

    def join(self, other: "Coverage") -> None:
        """Count what another has counted."""
        self.whole += other.whole
        for slices, weight in other.parts.items():
            self._count(slices, weight)

    def weights(self, length: int) -> Vector | float:
        """The weight of each element; one number where it is the same for all."""
        if not self.parts:
            return self.whole
        found = np.full(length, self.whole, np.float64)
        for slices, weight in sorted(self.parts.items()):
            for start, stop in slices:
                found[start:stop] += weight
        return found

    def of(self, start: int, stop: int) -> Mapping[Slices, float]:
        """The parts' weights within a section that begins and ends there: by slices in elements of the section. Where
        the section is covered whole by a part, that is one slice.
        """
        found: dict[Slices, float] = {}
        for slices, weight in sorted(self.parts.items()):
            inside = tuple((max(a, start) - start, min(b, stop) - start) for a, b in slices if a < stop and b > start)
            if inside != ((0, stop - start),):
                found[inside] = found.get(inside, 0.0) + weight
        return found

    def _count_accumulator(self, part: CountedUpdate, specs: Sequence[SectionSpec]) -> None:
        """An accumulator tells of each section by itself, and need not tell which of its clients are the same."""
        for at, spec in _with_offsets(specs):
            rest = part.weight
            for slices, weight in part.coverage.get(spec.name, {}).items():
                rest -= weight
                self._count(tuple((at + a, at + b) for a, b in slices), weight * part.freshness)
            self._count(((at, at + spec.length),), rest * part.freshness)

    def _count(self, slices: Slices, weight: float) -> None:
        if weight and slices:
            self.parts[slices] = self.parts.get(slices, 0.0) + weight


def _with_offsets(specs: Sequence[SectionSpec]) -> list[tuple[int, SectionSpec]]:
    """Each section with the place where it begins in their one vector."""
    found: list[tuple[int, SectionSpec]] = []
    at = 0
    for spec in specs:
        found.append((at, spec))
        at += spec.length
    return found
