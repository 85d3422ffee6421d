"""Some rows on their way through a pipeline: as columns, as a source gives them, or one by one, as steps take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import numpy as np

from coterie.compute.data.source import Row, Rows
from coterie.compute.ir import NDArray
from coterie.errors import DataError

Values: TypeAlias = "NDArray | Sequence[Any]"
Empty: TypeAlias = "Callable[[tuple[int, ...], np.dtype[Any]], NDArray]"
"""Makes an array of a shape and a dtype, to be filled."""


@dataclass(frozen=True, slots=True, eq=False)
class Coming:
    """``count`` rows, each made when it is asked for, so that one is out of the way before the next needs memory. They
    can be gone through once.
    """

    count: int
    made: Iterator[Row]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Row]:
        return self.made


Listed: TypeAlias = "Sequence[Row] | Coming"


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """What was made of the rows that were asked for.

    Either ``columns`` or ``listed`` holds the rows. index: int64, ascending: which of the rows asked for these are, by
    their place in the request; the others were filtered out. None where all are here.
    """

    columns: Rows | None = None
    listed: Listed | None = None
    index: NDArray | None = None

    def __len__(self) -> int:
        if self.listed is not None:
            return len(self.listed)
        return len(next(iter((self.columns or {}).values()), ()))

    def rows(self) -> Listed:
        """One dict a row."""
        if self.listed is not None:
            return self.listed
        columns = self.columns or {}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def as_columns(self, empty: Empty = np.empty) -> Rows:
        """Every column: an array where the rows' values have one shape and dtype, else a list.

        empty: makes the arrays of rows that are brought together. Raises DataError for rows that have not the same
        columns, and what making them raises.
        """
        if self.columns is not None:
            return self.columns
        return stacked(self.listed or (), empty)

    def pick(self, chosen: NDArray) -> Block:
        """The rows at these places of this block."""
        index = chosen if self.index is None else self.index[chosen]
        if self.listed is not None:
            rows, places = list(self.listed), cast("list[int]", chosen.tolist())
            return Block(listed=[rows[place] for place in places], index=index)
        return Block(
            columns={name: taken(values, chosen) for name, values in (self.columns or {}).items()}, index=index
        )

    def here(self) -> Block:
        """The same rows, all of them made."""
        return self if self.listed is None else replace(self, listed=list(self.listed))

    def among(self, places: NDArray) -> Block:
        """The same rows as part of a larger request, in which ``places`` [K] is where those asked for here are."""
        return replace(self, index=places if self.index is None else places[self.index])


def taken(values: Values, chosen: NDArray) -> Values:
    """Some values of a column."""
    return values[chosen] if isinstance(values, np.ndarray) else [values[place] for place in chosen.tolist()]


def stacked(rows: Listed, empty: Empty = np.empty) -> dict[str, Values]:
    """Rows as columns."""
    stacks: dict[str, _Stack] = {}
    for row in rows:
        stacks = stacks or {name: _Stack(len(rows), empty) for name in row}
        if row.keys() != stacks.keys():
            raise DataError(
                f"Rows of one data set have different columns: {', '.join(stacks)} and {', '.join(row)}.",
                hint="Let each step give every row the same columns.",
                code="data_columns",
            )
        for name, stack in stacks.items():
            stack.add(row[name])
    return {name: stack.values() for name, stack in stacks.items()}


def _form(array: NDArray) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Dtype and shape. The order of bytes is none of a number's kind: arrays that are made here have the machine's."""
    return array.dtype.newbyteorder("="), array.shape


class _Stack:
    """The values of one column of ``count`` rows. Arrays of one shape and dtype are brought together as they come."""

    def __init__(self, count: int, empty: Empty) -> None:
        self._count, self._empty = count, empty
        self._kind: tuple[np.dtype[Any], tuple[int, ...]] | None = None
        self._array: NDArray | None = None
        self._filled = 0
        self._values: list[Any] = []

    def add(self, value: Any) -> None:
        """The next value."""
        array = cast(NDArray, value) if isinstance(value, np.ndarray) else None
        if array is not None and not self._filled and array.ndim and array.dtype.kind in "biuf":
            self._kind = _form(array)
            self._array = self._empty((self._count, *array.shape), self._kind[0])
        self._filled += 1
        if self._array is None:
            self._values.append(value)
        elif array is not None and _form(array) == self._kind:
            self._array[self._filled - 1] = array
        else:
            self._values, self._array = [*self._array[: self._filled - 1], value], None

    def values(self) -> Values:
        """All values: an array where they are numbers of one shape and dtype; else as they are."""
        if self._array is not None:
            return self._array
        if isinstance(self._values[0], str | bytes):
            return self._values
        arrays = [np.asarray(value) for value in self._values]
        kinds = {_form(array) for array in arrays}
        return self._values if len(kinds) > 1 or arrays[0].dtype.kind not in "biuf" else np.stack(arrays)


def joined(parts: Sequence[Rows]) -> Rows:
    """Columns of blocks after one another. Raises DataError where they differ in names, shapes or dtypes."""
    if len(parts) == 1:
        return parts[0]
    names = parts[0].keys()
    if any(part.keys() != names for part in parts):
        raise DataError(
            "Parts of one data set have different columns: " + "; ".join(", ".join(part) for part in parts[:2]) + ".",
            hint="Give the parts the same columns with select and rename.",
            code="data_columns",
        )
    return {name: _joined([part[name] for part in parts]) for name in names}


def _joined(parts: Sequence[Values]) -> Values:
    if all(isinstance(part, np.ndarray) for part in parts):
        arrays = cast("Sequence[NDArray]", parts)
        if len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
            return np.concatenate(arrays)
    return [value for part in parts for value in part]


def described(rows: Mapping[str, Values]) -> str:
    """Names with what the values are, for messages."""
    return ", ".join(
        f"{name}: {values.dtype}{list(values.shape[1:])}"
        if isinstance(values, np.ndarray)
        else f"{name}: {_kinds(values)}"
        for name, values in rows.items()
    )


def _kinds(values: Sequence[object]) -> str:
    found = dict.fromkeys(_kind(value) for value in values)
    return " and ".join(list(found)[:3])


def _kind(value: object) -> str:
    if not isinstance(value, np.ndarray):
        return type(value).__name__
    array = cast(NDArray, value)
    return f"{array.dtype}{list(array.shape)}"
