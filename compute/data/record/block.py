"""Some rows as the payload of a block, and back.

Column after column, each part filled up with zeros to a multiple of ALIGNMENT:

    fixed shape       the values of all rows, C order
    text and bytes    where each row's bytes end (u64 a row), then the bytes of all rows
    other shapes      the lengths of the open dimensions (u32 a row and dimension), then as for bytes
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from coterie.compute.data.record.layout import Damaged, padding
from coterie.compute.data.source import Column
from coterie.compute.ir import NDArray

Values: TypeAlias = "NDArray | Sequence[Any]"
"""The values of one column: an array where the shape is fixed, else one object a row (bytes, or an array)."""


def stored_dtype(column: Column) -> np.dtype[Any]:
    """A number's bytes: little-endian; booleans as bytes of 0 and 1."""
    return np.dtype(np.uint8) if column.dtype == "bool" else np.dtype(column.dtype).newbyteorder("<")


def packed(columns: Mapping[str, Column], rows: Mapping[str, Values]) -> bytes:
    """The payload of these rows, which fit the columns."""
    parts: list[bytes] = []
    for name, column in columns.items():
        parts += _packed_column(column, rows[name])
    return b"".join(part + bytes(padding(len(part))) for part in parts)


def _packed_column(column: Column, values: Values) -> list[bytes]:
    if column.fixed:
        return [np.ascontiguousarray(values, stored_dtype(column)).tobytes()]
    if column.dtype in ("str", "bytes"):
        pieces = [value.encode() if isinstance(value, str) else bytes(value) for value in values]
        return [_ends(pieces), b"".join(pieces)]
    pieces = [np.ascontiguousarray(value, stored_dtype(column)).tobytes() for value in values]
    lengths = [[value.shape[axis] for axis in open_axes(column)] for value in values]
    return [np.array(lengths, "<u4").tobytes(), _ends(pieces), b"".join(pieces)]


def _ends(pieces: Sequence[bytes]) -> bytes:
    return np.cumsum([len(piece) for piece in pieces], dtype="<u8").tobytes()


def open_axes(column: Column) -> list[int]:
    """The dimensions whose length differs from row to row."""
    return [axis for axis, size in enumerate(column.shape) if size is None]


class Block:
    """The rows of one block, read in place.

    payload: checked against its checksum already. Raises Damaged where the parts do not fit into it: a file may have
    been made to deceive.
    """

    def __init__(self, at: int, columns: Mapping[str, Column], count: int, payload: memoryview) -> None:
        self.at, self.count = at, count
        self._payload, self._used = payload, 0
        self._columns = columns
        self._parts = {name: self._parts_of(column) for name, column in columns.items()}
        if self._used != len(payload):
            raise Damaged(at, "the block is longer than its columns")

    def take(self, name: str, rows: NDArray) -> Values:
        """Copies of one column's values at these rows (from 0)."""
        column, parts = self._columns[name], self._parts[name]
        if column.fixed:
            taken = parts[0][rows]
            return taken != 0 if column.dtype == "bool" else taken.astype(column.dtype, copy=False)
        ends, data = parts[-2], parts[-1]
        pieces = [
            data[int(ends[row - 1]) if row else 0 : int(ends[row])].tobytes() for row in cast(list[int], rows.tolist())
        ]
        if column.dtype == "bytes":
            return pieces
        if column.dtype == "str":
            return [self._text(piece) for piece in pieces]
        shapes = [self._shape(column, parts[0][row].tolist()) for row in rows.tolist()]
        return [self._array(column, piece, shape) for piece, shape in zip(pieces, shapes, strict=True)]

    def _parts_of(self, column: Column) -> tuple[NDArray, ...]:
        if column.fixed:
            shape = cast(tuple[int, ...], column.shape)
            return (self._next(stored_dtype(column), self.count * math.prod(shape)).reshape(self.count, *shape),)
        first: tuple[NDArray, ...] = ()
        if column.dtype not in ("str", "bytes"):
            axes = len(open_axes(column))
            first = (self._next(np.dtype("<u4"), self.count * axes).reshape(self.count, axes),)
        ends = self._next(np.dtype("<u8"), self.count)
        if np.any(ends[1:] < ends[:-1]):
            raise Damaged(self.at, "a row of the block ends before it begins")
        return (*first, ends, self._next(np.dtype(np.uint8), int(ends[-1]) if self.count else 0))

    def _next(self, dtype: np.dtype[Any], count: int) -> NDArray:
        """The next part of the payload."""
        size = count * dtype.itemsize
        if self._used + size + padding(size) > len(self._payload):
            raise Damaged(self.at, "the block is shorter than its columns")
        # NumPy makes no empty array of an empty buffer.
        part = np.frombuffer(self._payload, dtype, count, self._used) if count else np.empty(0, dtype)
        self._used += size + padding(size)
        return part

    def _text(self, piece: bytes) -> str:
        try:
            return piece.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Damaged(self.at, "a text of the block is not UTF-8") from error

    def _shape(self, column: Column, lengths: Sequence[int]) -> tuple[int, ...]:
        remaining = iter(lengths)
        return tuple(next(remaining) if size is None else size for size in column.shape)

    def _array(self, column: Column, piece: bytes, shape: tuple[int, ...]) -> NDArray:
        if math.prod(shape) * stored_dtype(column).itemsize != len(piece):
            raise Damaged(self.at, "a row of the block has another size than its shape")
        array = np.frombuffer(piece, stored_dtype(column)).reshape(shape)
        return array != 0 if column.dtype == "bool" else array.astype(column.dtype)
