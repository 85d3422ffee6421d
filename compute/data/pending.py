"""Rows that were made and not yet handed out."""

from __future__ import annotations

from collections import deque

from coterie.compute.data.block import Block, joined
from coterie.compute.data.source import Rows
from coterie.compute.ir import NDArray


class Pending:
    """Rows of one pass in order, each with its position; taken from the front, so many at a time."""

    def __init__(self) -> None:
        self._parts: deque[tuple[Rows, NDArray]] = deque()
        self._taken = 0  # of the first part
        self.count = 0

    def add(self, block: Block, positions: NDArray) -> None:
        """Rows behind the others. positions: of all rows that were asked for, int64 [K]."""
        if len(block):
            self._parts.append((block.columns or {}, positions if block.index is None else positions[block.index]))
            self.count += len(block)

    def take(self, count: int) -> tuple[Rows, int]:
        """The first ``count`` rows, of at least as many, and the position of the last."""
        parts: list[Rows] = []
        last = 0
        self.count -= count
        while count:
            columns, positions = self._parts[0]
            end = min(self._taken + count, len(positions))
            whole = self._taken == 0 and end == len(positions)
            parts.append(columns if whole else {name: values[self._taken : end] for name, values in columns.items()})
            last = int(positions[end - 1])
            count -= end - self._taken
            self._taken = end
            if end == len(positions):
                self._parts.popleft()
                self._taken = 0
        return joined(parts), last

    def clear(self) -> None:
        """Forget the rows that are left."""
        self._parts.clear()
        self._taken = self.count = 0
