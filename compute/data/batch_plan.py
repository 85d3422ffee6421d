"""What is to be made of the rows of a data set: batches of which size, in how many passes, by whom, how far ahead."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from coterie.compute.data.batching import Batching
from coterie.compute.data.stage import Stage
from coterie.compute.data.sync import SyncPoint
from coterie.compute.data.workers import Crew

# Where rows are only gathered, several batches are gathered at once: about so many bytes, which stay in the caches.
_PIECE_BYTES = 1 << 20
_TEXT_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The rows of ``stage`` as batches.

    passes: over the rows; None for no end. count: of workers, which are of ``crew``; 0 where whoever asks for a batch
    makes it. ahead: batches that are made ahead of the consumer. points: where a stream waits for a value.
    """

    stage: Stage
    batching: Batching
    passes: int | None = 1
    count: int = 0
    crew: Crew = "threads"
    ahead: int = 0
    points: tuple[SyncPoint, ...] = ()

    @property
    def size(self) -> int:
        """B, the rows of a batch."""
        return self.batching.size

    @property
    def per_epoch(self) -> int | None:
        """Batches of a pass; None where there is no end, or only filters know."""
        length = self.stage.length
        if length is None or self.stage.sparse:
            return None
        return length // self.size if self.batching.drop_remainder else -(-length // self.size)

    def describe(self) -> str:
        """The pipeline in one line: streams of pipelines with the same line can be restored from each other."""
        batching = self.batching
        rest = [f"size={batching.size}"]
        if batching.drop_remainder:
            rest.append("drop_remainder")
        if batching.operation is not None:
            rest.append(f"{batching.operation}, seed={batching.seed}")
        points = [f" → sync_wait({point.name}, every={point.every})" for point in self.points]
        return f"{self.stage.describe()} → batch({', '.join(rest)}){''.join(points)}"

    @cached_property
    def piece(self) -> int:
        """Rows that a worker makes at a time: a batch, or several where that only means to gather them."""
        columns = self.stage.columns
        if columns is None or self.batching.operation is not None:
            return self.size
        sizes = [
            np.dtype(column.dtype).itemsize * prod(extent or 1 for extent in column.shape)
            if column.fixed
            else _TEXT_BYTES
            for column in columns.values()
        ]
        return max(1, _PIECE_BYTES // (max(1, sum(sizes)) * self.size)) * self.size

    @property
    def pieces_ahead(self) -> int:
        """Pieces that are made while the consumer works; none, where it makes them itself."""
        return max(2 * self.count, -(-self.ahead * self.size // self.piece))
