"""Stages with several stages below: side by side, or one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from coterie.compute.data.block import Block, joined
from coterie.compute.data.source import Column
from coterie.compute.data.stage import Address, Job, Located, Memory, Stage
from coterie.errors import DataError


@dataclass(frozen=True, eq=False)
class Zipped(Stage):
    """Row i of every part, as one row with all their columns. The parts have one length and no filter."""

    parts: tuple[Stage, ...]

    def __post_init__(self) -> None:
        _require_apart([part.columns or {} for part in self.parts])

    @property
    def length(self) -> int | None:
        return self.parts[0].length

    @property
    def sparse(self) -> bool:
        return False

    @property
    def depth(self) -> int:
        return max(part.depth for part in self.parts)

    @property
    def columns(self) -> Mapping[str, Column] | None:
        found = [part.columns for part in self.parts]
        known = [columns for columns in found if columns is not None]
        return {name: column for columns in known for name, column in columns.items()} if known == found else None

    def locate(self, address: Address, memory: Memory) -> Located:
        return Located(address, tuple(part.locate(address, memory) for part in self.parts))

    def make(self, located: Located, job: Job) -> Block:
        blocks = [part.make(where, job) for part, where in zip(self.parts, located.parts, strict=True)]
        with job.timed("map"):
            made = [block.as_columns() for block in blocks]
        _require_apart(made)
        return Block(columns={name: values for block in made for name, values in block.items()})

    def describe(self) -> str:
        return f"zip({'; '.join(part.describe() for part in self.parts)})"


def _require_apart(parts: Sequence[Mapping[str, object]]) -> None:
    """Require names of their own of columns that come side by side. Raises DataError naming the first that has none."""
    names = [name for part in parts for name in part]
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(
            f"Two of the data sets that are zipped have a column {twice[0]!r}.",
            hint=f"Rename it in one of them: rename({twice[0]}='new').",
            code="data_columns",
        )


@dataclass(frozen=True, eq=False)
class Concatenated(Stage):
    """The rows of one part after those of another. Only the last may have no end."""

    parts: tuple[Stage, ...]

    @property
    def length(self) -> int | None:
        lengths = [part.length for part in self.parts]
        known = [length for length in lengths if length is not None]
        return sum(known) if len(known) == len(lengths) else None

    @property
    def sparse(self) -> bool:
        return any(part.sparse for part in self.parts)

    @property
    def depth(self) -> int:
        return max(part.depth for part in self.parts)

    @property
    def columns(self) -> Mapping[str, Column] | None:
        first, *others = (part.columns for part in self.parts)
        return first if all(columns == first for columns in others) else None

    def locate(self, address: Address, memory: Memory) -> Located:
        # Where each part but the last ends.
        ends = np.array([*accumulate(part.length or 0 for part in self.parts[:-1])], np.int64)
        number = np.searchsorted(ends, address.positions, side="right")
        starts = np.concatenate([[0], ends])
        parts: list[Located] = []
        places = tuple(np.flatnonzero(number == i) for i in range(len(self.parts)))
        for part, start, here in zip(self.parts, starts, places, strict=True):
            parts.append(part.locate(Address(address.passes[here], address.positions[here] - start), memory))
        return Located(address, tuple(parts), places)

    def make(self, located: Located, job: Job) -> Block:
        asked = [
            (part, where, here)
            for part, where, here in zip(self.parts, located.parts, located.places, strict=True)
            if len(here)
        ]
        if len(asked) == 1:
            part, where, _ = asked[0]
            return part.make(where, job)
        made = [part.make(where, job).among(here) for part, where, here in asked]
        made = [block for block in made if len(block)]
        if not made:
            return Block(listed=(), index=np.zeros(0, np.int64))
        index = np.concatenate([block.index for block in made if block.index is not None])
        order = np.argsort(index, kind="stable")
        if all(block.listed is None for block in made):
            whole = Block(columns=joined([block.as_columns() for block in made]))
        else:
            with job.timed("map"):
                whole = Block(listed=[row for block in made for row in block.rows()])
        picked = whole.pick(order)
        return Block(columns=picked.columns, listed=picked.listed, index=index[order])

    def describe(self) -> str:
        return f"concat({'; '.join(part.describe() for part in self.parts)})"
