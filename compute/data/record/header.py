"""The columns of a record file as JSON."""

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from coterie.compute.data.record.layout import Damaged, padding
from coterie.compute.data.source import Column
from coterie.errors import DataError

NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip
VALUES = ("bytes", "str")
MOST_COLUMNS = 4096
LONGEST_NAME = 256
HIGHEST_RANK = 8
LARGEST_DIMENSION = 2**31 - 1
LARGEST_ROW = 2**40
LONGEST_HEADER = 1 << 24


def to_header(columns: Mapping[str, Column]) -> bytes:
    """The payload of the header frame. Raises DataError for columns that the format cannot hold."""
    for name, column in columns.items():
        fault = _fault(name, column.dtype, column.shape)
        if fault:
            raise DataError(f"Column {name!r} cannot be in a record file: {fault}.", code="data_dtype", column=name)
    if not 0 < len(columns) <= MOST_COLUMNS:
        raise DataError(f"A record file has 1 to {MOST_COLUMNS} columns, not {len(columns)}.", code="data_missing")
    listed = [{"name": name, "dtype": column.dtype, "shape": column.shape} for name, column in columns.items()]
    text = json.dumps({"columns": listed}, ensure_ascii=False).encode()
    return text + b" " * padding(len(text))


def from_header(payload: memoryview) -> dict[str, Column]:
    """The columns that a header frame tells. Trusts nothing of it. Raises Damaged."""
    if len(payload) > LONGEST_HEADER:
        raise Damaged(0, "the header is too long")
    try:
        value: object = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise Damaged(0, "the header is no JSON") from error
    listed = _member(value, "columns")
    if not isinstance(listed, list) or not 0 < len(cast(list[object], listed)) <= MOST_COLUMNS:
        raise Damaged(0, "the header lists no columns")
    columns: dict[str, Column] = {}
    for item in cast(list[object], listed):
        name, dtype, shape = (_member(item, key) for key in ("name", "dtype", "shape"))
        fault = _fault(name, dtype, tuple(cast(list[object], shape)) if isinstance(shape, list) else shape)
        if fault or name in columns:
            raise Damaged(0, f"column {str(name)[:64]!r} of the header: {fault or 'it is there twice'}")
        columns[cast(str, name)] = Column(cast(str, dtype), tuple(cast(list[Any], shape)))
    return columns


def _member(value: object, key: str) -> object:
    return cast(dict[str, object], value).get(key) if isinstance(value, dict) else None


def _fault(name: object, dtype: object, shape: object) -> str:
    """What is wrong with a column; empty if nothing is."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        return f"a name has 1 to {LONGEST_NAME} printable characters"
    if dtype not in (*NUMBERS, *VALUES):
        return f"a dtype is one of {', '.join((*NUMBERS, *VALUES))}"
    if not isinstance(shape, tuple) or len(cast(tuple[object, ...], shape)) > HIGHEST_RANK:
        return f"a shape has at most {HIGHEST_RANK} dimensions"
    if dtype in VALUES and shape:
        return "text and bytes have no shape"
    for size in cast(tuple[object, ...], shape):
        whole = isinstance(size, int) and not isinstance(size, bool)
        if size is not None and not (whole and 1 <= cast(int, size) <= LARGEST_DIMENSION):
            return f"a dimension is None or 1 to {LARGEST_DIMENSION}"
    if math.prod(size or 1 for size in cast(tuple[int | None, ...], shape)) > LARGEST_ROW:
        return f"a row has at most {LARGEST_ROW} values"
    return ""
