"""Rows of a data set that are made whenever a batch wants them, so that memory holds a batch and not the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from coterie.compute.data.batches import WEIGHT
from coterie.compute.data.dataset import Dataset
from coterie.compute.data.mapping import emptied, written
from coterie.compute.data.source import Rows
from coterie.compute.data.stage import Address, Job, Memory, Stage
from coterie.compute.ir import NDArray
from coterie.errors import ArgumentValueError, DataError

Check: TypeAlias = Callable[[Rows, NDArray], tuple[Mapping[str, NDArray], "NDArray | None"]]
"""Columns as a pipeline gives them, and the numbers of their rows, to arrays [K, ...], and which of them count
(bool [K]; None for all). Raises DataError for those that do not fit.
"""

# Rows that are in memory while a data set is gone over for the first time.
_LOOKED_AT = 32


@dataclass(frozen=True, eq=False)
class StreamedRows:
    """N rows of a data set, in batches.

    stage: the pipeline.
    check: what every row goes through, each time that it is made.
    positions: int64 [N], where the rows are in the first pass.
    known: columns of the first pass that stay in memory, [N] each.
    read: rows of the first pass, also those that ``check`` says do not count.

    Guarantees: rows are told apart by their position in the first pass, whatever the chain shuffles or samples, so that
    a part that is chosen by position never meets the others. What operations draw for a row depends on their seeds, on
    ``salt``, and on the row alone. Memory holds one batch, and 8 bytes a row and ``known``.
    """

    stage: Stage
    check: Check
    positions: NDArray
    known: Mapping[str, NDArray]
    read: int

    @staticmethod
    def of(dataset: Dataset, check: Check, keep: Sequence[str] = ()) -> StreamedRows:
        """All rows of a data set, which is gone over once and checked.

        keep: columns that stay in memory. Raises ArgumentValueError for rows without end, DataError.
        """
        length = dataset.stage.length
        if length is None:
            raise ArgumentValueError(
                f"A stream of rows needs an end, and {dataset.describe()} has no end.", hint="Cut it with take(n)."
            )
        rows = StreamedRows(dataset.stage, check, np.zeros(0, np.int64), {}, 0)
        memory, read = Memory(), 0
        positions: list[NDArray] = [rows.positions]
        known: dict[str, list[NDArray]] = {name: [] for name in keep}
        for start in range(0, length, _LOOKED_AT):
            stop = min(start + _LOOKED_AT, length)
            arrays, found, made = rows._made(np.arange(start, stop, dtype=np.int64), memory, Job())
            read += made
            positions.append(found)
            if len(found):
                for name in keep:
                    known[name].append(arrays[name].copy())
        joined = {name: np.concatenate(parts) for name, parts in known.items() if parts}
        return replace(rows, positions=np.concatenate(positions), known=joined, read=read)

    def __len__(self) -> int:
        return len(self.positions)

    def select(self, mask: NDArray) -> StreamedRows:
        """Some of these rows, by a mask, bool [N]."""
        known = {name: values[mask] for name, values in self.known.items()}
        return replace(self, positions=self.positions[mask], known=known)

    def batches(self, size: int, order: NDArray, *, epoch: int = 0, salt: int = 0) -> Iterator[dict[str, NDArray]]:
        """Rows [B, ...] and ``sample_weight``, float32 [B]: padded and weighted as those of `Batches` are.

        order: int64, which of the rows, by their numbers from 0. epoch: what operations read as their pass. salt: added
        to their seeds; 0 gives the first pass again. A row that a filter drops under these draws, and kept in the first
        pass, is left out of its batch; so is a batch of such rows alone.

        Raises DataError naming column and row for what does not fit, and for an epoch of which no row is left.
        """
        memory, some = Memory(), False
        for first in range(0, len(order), size):
            chosen = self.positions[order[first : first + size]]
            arrays, found, _ = self._made(chosen, memory, Job(epoch=epoch, salt=salt))
            if len(found):
                some = True
                yield _padded(arrays, len(found), size)
        if not some:
            raise empty_epoch(self.stage, epoch)

    def _made(self, positions: NDArray, memory: Memory, job: Job) -> tuple[Mapping[str, NDArray], NDArray, int]:
        """The rows at these positions that count, their positions, and how many were made."""
        address = Address(np.zeros_like(positions), positions)
        block = self.stage.make(self.stage.locate(address, memory), job)
        made = len(block)
        if not made:
            return {}, positions[:0], 0
        found = positions if block.index is None else positions[block.index]
        try:
            arrays, counts = self.check(block.as_columns(), found + 1)
        except DataError as error:
            lines = ", ".join(written(self.stage)) or "none"
            error.add_note(f"In epoch {job.epoch + 1} of {self.stage.describe()}. Its steps are written at: {lines}.")
            raise
        if counts is None or counts.all():
            return arrays, found, made
        return {name: values[counts] for name, values in arrays.items()}, found[counts], made


def empty_epoch(stage: Stage, epoch: int) -> DataError:
    """Of an epoch, from 0, of which there is no batch."""
    return emptied(
        stage,
        f"Epoch {epoch + 1} of {stage.describe()} has no batch.",
        "Its filters keep nothing there: filter before what draws random numbers, or give it more rows.",
    )


def _padded(arrays: Mapping[str, NDArray], count: int, size: int) -> dict[str, NDArray]:
    """At most ``size`` rows as a batch: filled up with copies of its first, which weigh nothing."""
    weight = np.ones(size, np.float32)
    if count == size:
        return {**arrays, WEIGHT: weight}
    weight[count:] = 0
    chosen = np.concatenate([np.arange(count), np.zeros(size - count, np.int64)])
    return {name: values[chosen] for name, values in arrays.items()} | {WEIGHT: weight}
