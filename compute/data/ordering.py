"""Stages that only say which rows come when: shuffling, skipping, taking, repeating, sharding, sampling, splitting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coterie.compute.data.block import Block
from coterie.compute.data.samplers import Sampler
from coterie.compute.data.source import Column
from coterie.compute.data.stage import Address, Job, Located, Memory, Stage
from coterie.compute.ir import NDArray
from coterie.draws import batch_order


class Rule(ABC):
    """Positions of a stage as positions of the stage below."""

    @abstractmethod
    def length(self, below: int | None) -> int | None:
        """Positions in a pass, from those of the stage below."""

    @abstractmethod
    def address(self, address: Address, below: Stage, memory: Memory) -> Address:
        """Where rows are in the stage below."""


@dataclass(frozen=True, eq=False)
class Ordered(Stage):
    """The rows of a stage, some of them or all, in another order."""

    below: Stage
    rule: Rule

    @property
    def length(self) -> int | None:
        return self.rule.length(self.below.length)

    @property
    def sparse(self) -> bool:
        return self.below.sparse

    @property
    def depth(self) -> int:
        return self.below.depth

    @property
    def columns(self) -> Mapping[str, Column] | None:
        return self.below.columns

    def locate(self, address: Address, memory: Memory) -> Located:
        return self.below.locate(self.rule.address(address, self.below, memory), memory)

    def make(self, located: Located, job: Job) -> Block:
        return self.below.make(located, job)

    def describe(self) -> str:
        return f"{self.below.describe()} → {self.rule}"


@dataclass(frozen=True)
class Window(Rule):
    """The rows from ``start`` on, up to ``stop`` or the end."""

    start: int = 0
    stop: int | None = None

    def length(self, below: int | None) -> int | None:
        ends = [end for end in (below, self.stop) if end is not None]
        return max(0, min(ends) - self.start) if ends else None

    def address(self, address: Address, below: Stage, memory: Memory) -> Address:
        return Address(address.passes, address.positions + self.start)


@dataclass(frozen=True)
class Stride(Rule):
    """Every ``step``-th row from ``start`` on: one shard of ``step``."""

    start: int
    step: int

    def length(self, below: int | None) -> int | None:
        return None if below is None else max(0, -(-(below - self.start) // self.step))

    def address(self, address: Address, below: Stage, memory: Memory) -> Address:
        return Address(address.passes, address.positions * self.step + self.start)


@dataclass(frozen=True)
class Cycle(Rule):
    """All rows ``times`` times, or for ever; each time is a pass of the stage below."""

    times: int | None

    def length(self, below: int | None) -> int | None:
        return 0 if below == 0 else None if self.times is None or below is None else below * self.times

    def address(self, address: Address, below: Stage, memory: Memory) -> Address:
        length = below.length
        if not length:  # no end, so the first time never ends
            return address
        turn, position = np.divmod(address.positions, length)
        return Address(address.passes * (self.times or 0) + turn, position)


@dataclass(frozen=True)
class Sampled(Rule):
    """What a sampler takes in each pass."""

    sampler: Sampler

    def length(self, below: int | None) -> int | None:
        return self.sampler.size(below or 0)

    def address(self, address: Address, below: Stage, memory: Memory) -> Address:
        rows, passes = below.length or 0, address.passes

        def order(epoch: int) -> NDArray:
            return memory.of(self, epoch, lambda: self.sampler.order(rows, epoch))

        if len(address) and (passes == passes[0]).all():
            return Address(passes, order(int(passes[0]))[address.positions])
        positions = np.empty_like(address.positions)
        for epoch in np.unique(passes):
            here = passes == epoch
            positions[here] = order(int(epoch))[address.positions[here]]
        return Address(passes, positions)


@dataclass(frozen=True)
class Share(Rule):
    """One part of a split: some rows of the first pass, the same in every pass, so that parts never mix.

    start, stop: which of them, in their own order or, with a seed, in that of the seed.
    """

    start: int
    stop: int
    seed: int | None

    def length(self, below: int | None) -> int | None:
        return self.stop - self.start

    def address(self, address: Address, below: Stage, memory: Memory) -> Address:
        positions = address.positions + self.start
        if self.seed is not None:
            seed = self.seed
            order = memory.of(self, 0, lambda: batch_order(below.length or 0, seed, 0))
            positions = order[positions]
        return Address(np.zeros_like(address.passes), positions)
