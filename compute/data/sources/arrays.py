"""Rows that are in memory already."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias, cast, final

import numpy as np

from coterie.compute.data.checks import check_named
from coterie.compute.data.source import Column, Rows, Source
from coterie.compute.ir import NDArray
from coterie.errors import DataError

Values: TypeAlias = "NDArray | Sequence[str] | Sequence[bytes]"


@final
@dataclass(frozen=True, eq=False)
class ArraySource(Source):
    """Arrays by column name, all with the same number of rows.

    arrays: for each column an array ``[N, *shape]`` of booleans or numbers, an array ``[N]`` of text, or a sequence of
    N ``str`` or N ``bytes``. Nothing is copied: do not write to them afterwards. ``rows`` gives copies, text as a list.

    Raises DataError for no column at all, columns of unequal length, and arrays of Python objects.
    """

    arrays: Mapping[str, Values]
    _columns: Mapping[str, Column] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_named("ArraySource", arrays=self.arrays)
        columns = {name: column_of(name, values) for name, values in self.arrays.items()}
        if not columns:
            raise DataError("There is no column.", hint='Give arrays by name: {"x": x, "y": y}.', code="data_missing")
        lengths = {name: len(values) for name, values in self.arrays.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name!r} has {count}" for name, count in lengths.items())
            raise DataError(
                f"The columns differ in their number of rows: {told}.",
                hint="Give one value of each column for every row.",
                code="data_lengths",
            )
        object.__setattr__(self, "arrays", dict(self.arrays))
        object.__setattr__(self, "_columns", columns)

    @property
    def columns(self) -> Mapping[str, Column]:
        """What the arrays hold."""
        return MappingProxyType(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def rows(self, indices: NDArray) -> Rows:
        """Copies of the rows of these numbers."""
        return {name: take(values, indices) for name, values in self.arrays.items()}


def column_of(name: str, values: object) -> Column:
    """What a column holds. Raises DataError where it holds neither numbers, booleans, text nor bytes."""
    if isinstance(values, np.ndarray):
        array = cast(NDArray, values)
        if array.ndim and array.dtype.kind in "biuf":
            return Column(array.dtype.name, array.shape[1:])
        if array.ndim == 1 and array.dtype.kind in "UT":
            return Column("str")
        told = f"an array of {array.dtype}" if array.ndim else "a single value"
    elif isinstance(values, Sequence) and not isinstance(values, str | bytes):
        kinds = {type(value) for value in cast(Sequence[object], values)}
        if kinds <= {str} or kinds == {bytes}:
            return Column("bytes" if kinds == {bytes} else "str")
        told = f"a sequence of {' and '.join(sorted(kind.__name__ for kind in kinds))}"
    else:
        told = f"a {type(values).__name__}"
    raise DataError(
        f"Column {name!r} is {told}.",
        hint="A column is an array of numbers or booleans with one entry a row, or a list of str or of bytes.",
        code="data_dtype",
    )


def take(values: Values, indices: NDArray) -> "NDArray | list[Any]":
    """The values of these rows: a copy of an array's, a list of texts or bytes."""
    if isinstance(values, np.ndarray):
        # Of what lies together, whole rows are copied; of anything else, `take` would first copy all of it.
        together = values.flags.c_contiguous and values.flags.aligned
        taken = values.take(indices, axis=0) if together else values[indices]
        # In this machine's order of bytes, as the column says.
        return taken.tolist() if taken.dtype.kind in "UT" else taken.astype(taken.dtype.newbyteorder("="), copy=False)
    return [values[index] for index in indices.tolist()]
