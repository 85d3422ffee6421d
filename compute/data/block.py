"""Some rows on their way through a pipeline: as columns, as a source gives them, or one by one, as steps take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import numpy as np

from coterie.compute.data.source import Row, Rows
from coterie.compute.ir import NDArray
from coterie.errors import DataError

Values: TypeAlias = "NDArray | Sequence[Any]"


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """What was made of the rows that were asked for.

    Either ``columns`` or ``listed`` holds the rows. index: int64, ascending: which of the rows asked for these are, by
    their place in the request; the others were filtered out. None where all are here.
    """

    columns: Rows | None = None
    listed: Sequence[Row] | None = None
    index: NDArray | None = None

    def __len__(self) -> int:
        if self.listed is not None:
            return len(self.listed)
        return len(next(iter((self.columns or {}).values()), ()))

    def rows(self) -> Sequence[Row]:
        """One dict a row."""
        if self.listed is not None:
            return self.listed
        columns = self.columns or {}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def as_columns(self) -> Rows:
        """Every column: an array where the rows' values have one shape and dtype, else a list.

        Raises DataError for rows that have not the same columns.
        """
        if self.columns is not None:
            return self.columns
        return stacked(self.listed or ())

    def pick(self, chosen: NDArray) -> Block:
        """The rows at these places of this block."""
        index = chosen if self.index is None else self.index[chosen]
        if self.listed is not None:
            places: list[int] = chosen.tolist()
            return Block(listed=[self.listed[place] for place in places], index=index)
        return Block(
            columns={name: taken(values, chosen) for name, values in (self.columns or {}).items()}, index=index
        )

    def among(self, places: NDArray) -> Block:
        """The same rows as part of a larger request, in which ``places`` [K] is where those asked for here are."""
        return replace(self, index=places if self.index is None else places[self.index])


def taken(values: Values, chosen: NDArray) -> Values:
    """Some values of a column."""
    return values[chosen] if isinstance(values, np.ndarray) else [values[place] for place in chosen.tolist()]


def stacked(rows: Sequence[Row]) -> dict[str, Values]:
    """Rows as columns."""
    if not rows:
        return {}
    names = rows[0].keys()
    for row in rows:
        if row.keys() != names:
            raise DataError(
                f"Rows of one data set have different columns: {', '.join(names)} and {', '.join(row)}.",
                hint="Let each step give every row the same columns.",
                code="data_columns",
            )
    return {name: column_of([row[name] for row in rows]) for name in names}


def column_of(values: Sequence[Any]) -> Values:
    """Values of one column as an array [K, ...], where they are numbers of one shape and dtype; else as they are."""
    first = values[0]
    if isinstance(first, str | bytes):
        return values
    arrays = [np.asarray(value) for value in values]
    kinds = {(array.dtype, array.shape) for array in arrays}
    if len(kinds) > 1 or arrays[0].dtype.kind not in "biuf":
        return values
    return np.stack(arrays)


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
