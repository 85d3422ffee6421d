"""Rows that a filter leaves, counted: what taking and skipping after a filter need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from coterie.compute.data.block import Block
from coterie.compute.data.mapping import emptied
from coterie.compute.data.source import Column
from coterie.compute.data.stage import Address, Job, Located, Memory, Stage
from coterie.compute.ir import NDArray
from coterie.errors import DataError

# Rows that are looked at together: no fewer, for a step's sake, and no more, which might not be needed.
_FEWEST, _MOST = 32, 1024
# A pipeline without end in which a filter keeps nothing would be searched for ever.
PATIENCE = 1_000_000


@dataclass
class _Found:
    """Positions with a row, as far as they have been looked for. next: the first position not looked at."""

    positions: NDArray = field(default_factory=lambda: np.zeros(0, np.int64))
    next: int = 0

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True, eq=False)
class Remaining(Stage):
    """The rows that remain of a stage with filters, at positions 0, 1, … without gaps; behind the last is nothing.

    The filters are evaluated in order as far as is needed, once a pass, and again when the rows are made.
    """

    below: Stage

    @property
    def length(self) -> int | None:
        return self.below.length

    @property
    def sparse(self) -> bool:
        return True

    @property
    def depth(self) -> int:
        return self.below.depth

    @property
    def columns(self) -> Mapping[str, Column] | None:
        return self.below.columns

    def locate(self, address: Address, memory: Memory) -> Located:
        passes, positions, here = [address.passes[:0]], [address.positions[:0]], [np.zeros(0, np.int64)]
        for epoch in np.unique(address.passes):
            places = np.flatnonzero(address.passes == epoch)
            ranks = address.positions[places]
            found = self._found(int(epoch), int(ranks.max()) + 1, memory)
            there = ranks < len(found)
            here.append(places[there])
            positions.append(found[ranks[there]])
            passes.append(address.passes[places[there]])
        places = np.concatenate(here)
        order = np.argsort(places, kind="stable")
        below = Address(np.concatenate(passes)[order], np.concatenate(positions)[order])
        return Located(address, (self.below.locate(below, memory),), (places[order],))

    def make(self, located: Located, job: Job) -> Block:
        return self.below.make(located.parts[0], job).among(located.places[0])

    def _found(self, epoch: int, wanted: int, memory: Memory) -> NDArray:
        """The positions of the first ``wanted`` rows of a pass, or of all."""
        found = memory.of(self, epoch, _Found)
        length, barren = self.below.length, 0
        while len(found) < wanted and (length is None or found.next < length):
            span = min(max(2 * (wanted - len(found)), _FEWEST), _MOST)
            stop = found.next + span if length is None else min(found.next + span, length)
            located = self.below.locate(Address.span(epoch, found.next, stop), memory)
            block = self.below.make(located, Job())
            kept = np.arange(stop - found.next) if block.index is None else block.index
            found.positions = np.concatenate([found.positions, kept + found.next])
            barren = 0 if len(kept) else barren + stop - found.next
            found.next = stop
            if length is None and barren >= PATIENCE:
                raise nothing_left(self.below)
        return found.positions

    def describe(self) -> str:
        return f"{self.below.describe()} → counted"


def nothing_left(stage: Stage) -> DataError:
    """Of a filter that keeps no row of very many."""
    return emptied(
        stage,
        f"No row is left of the last {PATIENCE} of {stage.describe()}.",
        "The filter keeps nothing; look at what it is given.",
    )
