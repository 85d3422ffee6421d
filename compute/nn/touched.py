"""The rows of an embedding table that a batch touches.

A step costs as much as the table is large, if the table is its parameter. Where a batch touches few rows, the host maps
the ids to those rows, and the step trains the slice [U, size] alone: an ``Embedding(U, size)`` whose ids are places in
the slice. What the step makes of the slice goes back into the table. The upload is then sparse as well.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np

from coterie.compute.ir import NDArray
from coterie.errors import InputError


@dataclass(frozen=True, eq=False)
class TouchedRows:
    """The distinct rows of a batch.

    rows: int64[capacity], rising for the first ``count``, then row 0 to fill the static shape. ids: int32 in the shape
    of the batch's ids, the place of each in ``rows``.
    """

    rows: NDArray
    ids: NDArray
    count: int

    @staticmethod
    def of(ids: NDArray, *, table_rows: int, capacity: int | None = None) -> "TouchedRows":
        """The rows that ``ids`` touch in a table of ``table_rows``. capacity: how many rows the step has, as many as
        there are ids unless given.

        Raises InputError for an id outside the table and for more distinct ids than the capacity.
        """
        whole = isinstance(cast(object, ids), np.ndarray) and ids.dtype.kind in "iu"
        distinct, places = np.unique(ids, return_inverse=True) if whole else (np.full(1, -1), ids)
        if distinct.size and not 0 <= distinct[0] <= distinct[-1] < table_rows:
            raise InputError(
                f"The ids must be a NumPy array of whole numbers in 0 .. {table_rows - 1}.",
                hint="Check the vocabulary.",
            )
        size = min(ids.size, table_rows) if capacity is None else capacity
        if len(distinct) > size:
            raise InputError(
                f"The batch touches {len(distinct)} rows, and the step has room for {size}.",
                hint="Give a capacity of at least the batch's number of ids.",
            )
        rows = np.zeros(size, np.int64)
        rows[: len(distinct)] = distinct
        return TouchedRows(rows, places.reshape(ids.shape).astype(np.int32), len(distinct))

    def gather(self, table: NDArray) -> NDArray:
        """The slice [capacity, ...] of a table, or of an optimizer's state of its shape. Raises InputError for a table
        with fewer rows.
        """
        if len(table) <= self.rows.max(initial=-1):
            raise InputError(f"The table has {len(table)} rows, and the batch touches row {self.rows.max()}.")
        return table[self.rows]

    def scatter(self, table: NDArray, part: NDArray) -> NDArray:
        """The table with the touched rows replaced by those of a slice. Raises InputError for a slice of another
        shape.
        """
        if part.shape != (len(self.rows), *table.shape[1:]):
            raise InputError(f"A slice of {list(table.shape)} has {len(self.rows)} rows, got {list(part.shape)}.")
        after = table.copy()
        after[self.rows[: self.count]] = part[: self.count]
        return after
