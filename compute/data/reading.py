"""The first stage: rows of a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.compute.data.block import Block
from coterie.compute.data.source import Column, Source
from coterie.compute.data.stage import Address, Job, Located, Memory, Stage


@dataclass(frozen=True, eq=False)
class Reading(Stage):
    """The rows of a source in their own order, the same in every pass."""

    source: Source

    @property
    def length(self) -> int:
        return len(self.source)

    @property
    def sparse(self) -> bool:
        return False

    @property
    def depth(self) -> int:
        return 0

    @property
    def columns(self) -> Mapping[str, Column]:
        return self.source.columns

    def locate(self, address: Address, memory: Memory) -> Located:
        return Located(address)

    def make(self, located: Located, job: Job) -> Block:
        with job.timed("load"):
            return Block(columns=self.source.rows(located.address.positions))

    def describe(self) -> str:
        return f"{type(self.source).__name__}[{self.length}]({', '.join(self.columns)})"
