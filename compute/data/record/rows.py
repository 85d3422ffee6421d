"""Rows on their way into a record file: whether they fit its columns, how large they are, and many as one."""

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from coterie.compute.data.record.block import Values
from coterie.compute.data.source import Column
from coterie.compute.ir import NDArray
from coterie.errors import DataError


def checked(name: str, column: Column, values: object) -> Values:
    """Values that fit a column. Raises DataError."""
    if values is None:
        raise DataError(f"Column {name!r} is missing.", code="data_missing", column=name)
    if column.fixed:
        array = np.asarray(values)
        if array.dtype.name != column.dtype or array.shape[1:] != column.shape or not array.ndim:
            raise _unfit(name, column, f"an array of {array.dtype} {array.shape}")
        return array
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str | bytes):
        raise _unfit(name, column, f"a {type(cast(object, values)).__name__}")
    listed: list[object] = list(cast(Sequence[object], values))
    for value in listed:
        if column.dtype == "str":
            fits = isinstance(value, str)
            if fits and not _has_bytes(cast(str, value)):
                raise _unfit(name, column, f"{value!r}, of which UTF-8 has no bytes")
        elif column.dtype == "bytes":
            fits = isinstance(value, bytes)
        else:
            fits = isinstance(value, np.ndarray) and _fits(cast(NDArray, value), column)
        if not fits:
            raise _unfit(name, column, f"a {type(cast(object, value)).__name__}")
    return listed


def _has_bytes(value: str) -> bool:
    """Whether a text can be written in UTF-8: half of a surrogate pair, which JSON may hold, cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fits(value: NDArray, column: Column) -> bool:
    return (
        value.dtype.name == column.dtype
        and value.ndim == len(column.shape)
        and all(size in (None, length) for size, length in zip(column.shape, value.shape, strict=True))
    )


def _unfit(name: str, column: Column, given: str) -> DataError:
    return DataError(
        f"Column {name!r} holds {column.dtype} {column.shape}; it was given {given}.",
        hint="Convert the values; nothing is converted on the way to a file.",
        code="data_dtype",
        column=name,
    )


def sizes(columns: Mapping[str, Column], rows: Mapping[str, Values]) -> NDArray:
    """About how many bytes each row takes: int64[K]."""
    total: NDArray = np.zeros(len(next(iter(rows.values()))), np.int64)
    for name, column in columns.items():
        values = rows[name]
        if isinstance(values, np.ndarray):
            total += values[:1].nbytes
        elif column.dtype in ("str", "bytes"):
            total += np.array([8 + len(value) for value in values], np.int64)
        else:
            total += np.array([8 + value.nbytes for value in values], np.int64)
    return total


def joined(column: Column, parts: Sequence[Values]) -> Values:
    """The values of all parts, one after another."""
    if column.fixed:
        return np.concatenate(cast(Sequence[NDArray], parts))
    return [value for part in parts for value in part]
