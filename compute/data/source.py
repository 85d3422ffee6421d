"""Where rows come from: the one thing that a dataset asks of a file, a folder or an array."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from coterie.compute.ir import NDArray

Row: TypeAlias = Mapping[str, Any]
"""One row: column name → NumPy array or scalar, str or bytes."""

Rows: TypeAlias = Mapping[str, "NDArray | Sequence[Any]"]
"""K rows, column by column: an array ``[K, *shape]`` where every row has one shape and a NumPy dtype, else a sequence
of K values.
"""


@dataclass(frozen=True, slots=True)
class Column:
    """What a column holds.

    dtype: a NumPy dtype's name (``"float32"``), or ``"str"`` or ``"bytes"`` for text and for files that are yet to be
    decoded. shape: the shape of one row's value, ``()`` for a scalar; None for a length that differs from row to row.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()

    @property
    def fixed(self) -> bool:
        """Whether the rows of this column stack into one array."""
        return self.dtype not in ("str", "bytes") and None not in self.shape


class Source(ABC):
    """Rows by number, in columns with names.

    Access by number, to many rows at once, is what makes order, shards and resumption independent of who reads. A
    source is a value: it can be read by many threads at once, and can be pickled to a spawned process, where it opens
    its files again. Reading the same rows again gives the same bytes, as long as the files do not change.
    """

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, Column]:
        """What a row holds, by name, in order."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def rows(self, indices: NDArray) -> Rows:
        """The rows of these numbers, in this order.

        indices: int64[K], each in [0, len); a number may occur more than once. Returns every column with K values; the
        caller may write to them. Raises DataError for a row that cannot be read, naming file and row.
        """
