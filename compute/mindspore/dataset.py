"""``mindspore.dataset``, as little of it as a training script needs: rows in memory, mapped, shuffled and batched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.mindspore.context import fresh_stream
from coterie.compute.mindspore.tensor import Tensor
from coterie.compute.nn.initialisers import unit
from coterie.errors import ArgumentValueError, DataError


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Columns of rows of one length, and how they are gone through. Every method gives a new one."""

    columns: Mapping[str, NDArray]
    shuffled: bool = False
    batch_size: int | None = None
    drops: bool = False

    def shuffle(self, buffer_size: int) -> Dataset:
        """A new order for every pass. All rows are shuffled, whatever the size of the buffer."""
        return replace(self, shuffled=True)

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """Rows in batches; the last may be shorter, or is dropped."""
        if batch_size < 1:
            raise ArgumentValueError(f"batch_size must be at least 1, got {batch_size}.")
        return replace(self, batch_size=batch_size, drops=drop_remainder)

    def map(self, operations: Callable[..., Any] | Sequence[Callable[..., Any]], input_columns: Any = None) -> Dataset:
        """A column with a function, or several in turn, applied to every row."""
        name = next(iter(self.columns)) if input_columns is None else input_columns
        (name,) = (name,) if isinstance(name, str) else name
        steps = [operations] if callable(operations) else operations
        rows = list(self.columns[name])
        for step in steps:
            rows = [np.asarray(step(row)) for row in rows]
        return replace(self, columns={**self.columns, name: np.stack(rows)})

    def get_dataset_size(self) -> int:
        """The number of batches, or of rows where there are none."""
        rows, size = self._rows(), self.batch_size or 1
        return rows // size if self.drops else -(-rows // size)

    def get_col_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.columns)

    def _rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def create_tuple_iterator(self, num_epochs: int = 1, output_numpy: bool = False) -> Iterator[list[Any]]:
        """One list of columns for each batch."""
        for _ in range(num_epochs):
            rows = self._rows()
            order = np.argsort(unit((rows,), fresh_stream()), kind="stable") if self.shuffled else np.arange(rows)
            for index in range(self.get_dataset_size()):
                size = self.batch_size
                at = order[index] if size is None else order[index * size : (index + 1) * size]
                found = [np.asarray(column[at]) for column in self.columns.values()]
                yield found if output_numpy else [Tensor(array) for array in found]

    def create_dict_iterator(self, num_epochs: int = 1, output_numpy: bool = False) -> Iterator[dict[str, Any]]:
        """One dict of columns for each batch."""
        for row in self.create_tuple_iterator(num_epochs, output_numpy):
            yield dict(zip(self.columns, row, strict=True))

    def __iter__(self) -> Iterator[list[Any]]:
        return self.create_tuple_iterator()


def NumpySlicesDataset(data: Any, column_names: Sequence[str] | str | None = None, shuffle: bool = True) -> Dataset:
    """Rows of an array, of a tuple of arrays of one length, or of a dict of them."""
    if isinstance(data, Mapping):
        return _dataset(cast("Mapping[str, Any]", data), shuffle)
    listed = cast("tuple[Any, ...]", data if isinstance(data, tuple) else (data,))
    return _dataset(dict(zip(_names(column_names, len(listed)), listed, strict=True)), shuffle)


def GeneratorDataset(source: Any, column_names: Sequence[str] | str, shuffle: bool = True) -> Dataset:
    """The rows that an iterable, a function that gives one, or an object with ``__getitem__`` and ``__len__`` gives;
    all are read now.
    """
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        rows: Iterable[Any] = [source[index] for index in range(len(source))]
    else:
        rows = cast("Iterable[Any]", source() if callable(source) else source)
    told = [cast("tuple[Any, ...]", row if isinstance(row, tuple) else (row,)) for row in rows]
    columns = [np.stack([np.asarray(value) for value in column]) for column in zip(*told, strict=True)]
    return _dataset(dict(zip(_names(column_names, len(columns)), columns, strict=True)), shuffle)


def _names(given: Sequence[str] | str | None, count: int) -> list[str]:
    names = [f"column_{i}" for i in range(count)] if given is None else [given] if isinstance(given, str) else given
    if len(names) != count:
        raise ArgumentValueError(f"{len(names)} column names for {count} columns.")
    return list(names)


def _dataset(columns: Mapping[str, Any], shuffle: bool) -> Dataset:
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    if len({len(array) for array in arrays.values()}) != 1:
        raise DataError(f"The columns have {[len(array) for array in arrays.values()]} rows; one number is needed.")
    return Dataset(columns=arrays, shuffled=shuffle)
