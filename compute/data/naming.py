"""A stage that chooses and renames columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.compute.data.block import Block, Coming
from coterie.compute.data.source import Column
from coterie.compute.data.stage import Address, Job, Located, Memory, Stage
from coterie.errors import DataError


@dataclass(frozen=True, eq=False)
class Named(Stage):
    """Columns of a stage under names of their own. names: new name → old name, in order. others: whether columns that
    are not named stay, behind them.
    """

    below: Stage
    names: Mapping[str, str]
    others: bool

    def __post_init__(self) -> None:
        if self.below.columns is not None:
            self._named(self.below.columns)

    @property
    def length(self) -> int | None:
        return self.below.length

    @property
    def sparse(self) -> bool:
        return self.below.sparse

    @property
    def depth(self) -> int:
        return self.below.depth

    @property
    def columns(self) -> Mapping[str, Column] | None:
        return None if self.below.columns is None else self._named(self.below.columns)

    def locate(self, address: Address, memory: Memory) -> Located:
        return self.below.locate(address, memory)

    def make(self, located: Located, job: Job) -> Block:
        block = self.below.make(located, job)
        if block.listed is not None:
            return Block(listed=Coming(len(block), map(self._named, block.listed)), index=block.index)
        if not block.columns:
            # Of no rows nobody may know the columns.
            return block
        return Block(columns=self._named(block.columns), index=block.index)

    def _named(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        if missing := [old for old in self.names.values() if old not in columns]:
            raise DataError(
                f"There is no column {missing[0]!r}; there are {', '.join(columns) or 'none'}.", code="data_missing"
            )
        named = {new: columns[old] for new, old in self.names.items()}
        if not self.others:
            return named
        kept = {name: values for name, values in columns.items() if name not in self.names.values()}
        if twice := sorted(named.keys() & kept.keys()):
            raise DataError(f"There would be two columns {twice[0]!r}.", code="data_columns")
        return named | kept

    def describe(self) -> str:
        named = ", ".join(new if new == old else f"{new}={old}" for new, old in self.names.items())
        return f"{self.below.describe()} → {'rename' if self.others else 'select'}({named})"
