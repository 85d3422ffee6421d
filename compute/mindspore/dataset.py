"""``mindspore.dataset`` over ``coterie.compute.data``: rows in memory, in a chain of MindSpore's methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, cast

import numpy as np

from coterie.compute import data
from coterie.compute.data.batches import WEIGHT
from coterie.compute.mindspore.context import fresh_stream
from coterie.compute.mindspore.tensor import Tensor
from coterie.errors import ArgumentValueError, DataError

Columns = str | Sequence[str]
Operations = Callable[..., Any] | Sequence[Callable[..., Any]]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Rows and how they are gone through. Every method gives a new one; an iterator is one pass or several, each with
    an order and random numbers of its own.

    What works on rows comes before ``batch``; behind it are ``repeat`` and the iterators.
    """

    rows: data.Dataset
    batch_size: int | None = None
    drops: bool = False
    times: int = 1
    passes: Iterator[int] = field(default_factory=count, compare=False)

    def shuffle(self, buffer_size: int) -> Dataset:
        """A new order for every pass. All rows are shuffled, whatever the size of the buffer."""
        # Below 2**63, as JSON and seeds have it everywhere.
        return self._with(self.rows.shuffle(int(fresh_stream().random_raw(1)[0]) >> 1))

    def map(
        self, operations: Operations, input_columns: Columns | None = None, output_columns: Columns | None = None
    ) -> Dataset:
        """A column (the first, if none is named) with a function, or several in turn, applied to every row."""
        listed = [operations] if callable(operations) else list(operations)
        names = next(iter(self.rows.columns)) if input_columns is None else input_columns
        return self._with(self.rows.map(listed, names, outputs=output_columns))

    def filter(self, predicate: Callable[..., Any], input_columns: Columns | None = None) -> Dataset:
        """The rows for whose columns (all, if none is named) the predicate is true."""
        return self._with(self.rows.filter(predicate, input_columns or list(self.rows.columns)))

    def take(self, count: int = -1) -> Dataset:
        """The first rows; all for -1."""
        return self if count == -1 else self._with(self.rows.take(count))

    def skip(self, count: int) -> Dataset:
        """The rows behind the first ones."""
        return self._with(self.rows.skip(count))

    def repeat(self, count: int) -> Dataset:
        """So many passes as one."""
        if self.batch_size is None:
            return self._with(self.rows.repeat(count))
        if count < 1:
            raise ArgumentValueError(f"repeat: count must be at least 1, got {count}.")
        return replace(self, times=self.times * count, passes=_passes())

    def split(self, sizes: Sequence[float], randomize: bool = True) -> list[Dataset]:
        """Parts of these numbers of rows, or of these shares of them, in an order drawn now where ``randomize``."""
        seed = int(fresh_stream().random_raw(1)[0]) >> 1 if randomize else None
        return [self._with(part) for part in self._unbatched().split(*sizes, seed=seed)]

    def zip(self, datasets: Dataset | Sequence[Dataset]) -> Dataset:
        """The columns of the others beside these."""
        return self._with(self.rows.zip(*(other.rows for other in _listed(datasets))))

    def concat(self, datasets: Dataset | Sequence[Dataset]) -> Dataset:
        """The rows of the others behind these."""
        return self._with(self.rows.concat(*(other.rows for other in _listed(datasets))))

    def __add__(self, other: Dataset) -> Dataset:
        return self.concat(other)

    def project(self, columns: Columns) -> Dataset:
        """Some columns, in this order."""
        return self._with(self.rows.select(*([columns] if isinstance(columns, str) else columns)))

    def rename(self, input_columns: Columns, output_columns: Columns) -> Dataset:
        """Columns under other names."""
        old, new = ([names] if isinstance(names, str) else names for names in (input_columns, output_columns))
        return self._with(self.rows.rename(**dict(zip(old, new, strict=True))))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """Rows in batches; the last may be shorter, or is dropped."""
        if batch_size < 1:
            raise ArgumentValueError(f"batch_size must be at least 1, got {batch_size}.")
        return replace(self, batch_size=batch_size, drops=drop_remainder, passes=_passes())

    def get_dataset_size(self) -> int:
        """The number of batches, or of rows where there are none. Raises ArgumentTypeError behind a filter."""
        rows, size = len(self.rows), self.batch_size or 1
        return self.times * (rows // size if self.drops else -(-rows // size))

    def get_col_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.rows.columns)

    def create_dict_iterator(self, num_epochs: int = 1, output_numpy: bool = False) -> Iterator[dict[str, Any]]:
        """One dict of columns for each batch."""
        for _ in range(num_epochs * self.times):
            for found in self._pass(next(self.passes)):
                yield found if output_numpy else {name: Tensor(array) for name, array in found.items()}

    def create_tuple_iterator(self, num_epochs: int = 1, output_numpy: bool = False) -> Iterator[list[Any]]:
        """One list of columns for each batch."""
        for found in self.create_dict_iterator(num_epochs, output_numpy):
            yield list(found.values())

    def __iter__(self) -> Iterator[list[Any]]:
        return self.create_tuple_iterator()

    def _pass(self, number: int) -> Iterator[dict[str, Any]]:
        batches = self.rows.batch(self.batch_size or 1, drop_remainder=self.drops).epochs(number + 1)
        with batches.stream() as stream:
            stream.restore({**stream.state(), "epoch": number})
            for batch in stream:
                real = int(batch.pop(WEIGHT).sum())
                found = {name: np.asarray(column)[:real] for name, column in batch.items()}
                yield found if self.batch_size else {name: np.asarray(column[0]) for name, column in found.items()}

    def _with(self, rows: data.Dataset) -> Dataset:
        self._unbatched()
        return Dataset(rows=rows)

    def _unbatched(self) -> data.Dataset:
        if self.batch_size is not None:
            raise ArgumentValueError(
                "These are batches already; this method works on rows.", hint="Call it before batch."
            )
        return self.rows


def NumpySlicesDataset(data: Any, column_names: Columns | None = None, shuffle: bool = True) -> Dataset:
    """Rows of an array, of a tuple of arrays of one length, or of a dict of them."""
    if isinstance(data, Mapping):
        return _dataset(cast("Mapping[str, Any]", data), shuffle)
    listed = cast("tuple[Any, ...]", data if isinstance(data, tuple) else (data,))
    return _dataset(dict(zip(_names(column_names, len(listed)), listed, strict=True)), shuffle)


def GeneratorDataset(source: Any, column_names: Columns, shuffle: bool = True) -> Dataset:
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


def _names(given: Columns | None, count: int) -> list[str]:
    names = [f"column_{i}" for i in range(count)] if given is None else [given] if isinstance(given, str) else given
    if len(names) != count:
        raise ArgumentValueError(f"{len(names)} column names for {count} columns.")
    return list(names)


def _dataset(columns: Mapping[str, Any], shuffle: bool) -> Dataset:
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    if len({len(array) for array in arrays.values()}) != 1:
        raise DataError(f"The columns have {[len(array) for array in arrays.values()]} rows; one number is needed.")
    whole = Dataset(rows=data.Dataset.of(data.ArraySource(arrays)))
    return whole.shuffle(len(whole.rows)) if shuffle else whole


def _listed(datasets: Dataset | Sequence[Dataset]) -> Sequence[Dataset]:
    return [datasets] if isinstance(datasets, Dataset) else datasets


def _passes() -> Iterator[int]:
    return count()
