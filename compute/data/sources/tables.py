"""Tables of other libraries as sources, by the methods that they have: nothing is imported."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast, final

import numpy as np

from coterie.compute.data.source import Column, Rows, Source
from coterie.compute.data.sources.images import file_bytes
from coterie.compute.ir import NDArray
from coterie.errors import DataError

# What Arrow and Hugging Face call types, by NumPy's names.
DTYPES: Mapping[str, str] = {
    **{name: name for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    **{name: name for name in ("float16", "float32", "float64")},
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    **dict.fromkeys(("string", "large_string", "string_view"), "str"),
    **dict.fromkeys(("binary", "large_binary", "binary_view"), "bytes"),
}


class ArrowTable(Protocol):
    """What is used of a ``pyarrow.Table``."""

    @property
    def schema(self) -> Iterable[Any]:
        """Fields with a name and a type."""
        ...

    @property
    def num_rows(self) -> int:
        """How many rows."""
        ...

    def take(self, indices: Any) -> Any:
        """The rows of these numbers."""
        ...


class HuggingFaceDataset(Protocol):
    """What is used of a ``datasets.Dataset``."""

    @property
    def features(self) -> Mapping[str, Any]:
        """A type a column."""
        ...

    def __len__(self) -> int: ...

    def with_format(self, type: str | None) -> Any:
        """The same rows, as values of another library."""
        ...


@final
@dataclass(frozen=True, eq=False)
class ArrowSource(Source):
    """A ``pyarrow.Table``, in memory or mapped from a file.

    table: with columns of booleans, numbers, text, bytes, categories of text, and lists of numbers (of one length or of
    many). Missing values are NaN in columns of floats. Raises DataError for columns of other types, and naming row and
    column for missing values elsewhere.
    """

    table: ArrowTable

    @property
    def columns(self) -> Mapping[str, Column]:
        """What the table's schema tells."""
        return {field.name: _arrow_column(field.name, field.type) for field in self.table.schema}

    def __len__(self) -> int:
        return self.table.num_rows

    def rows(self, indices: NDArray) -> Rows:
        """These rows of the table."""
        taken = self.table.take(indices)
        return {
            name: _values(name, column, taken.column(name).to_pylist(), indices)
            for name, column in self.columns.items()
        }


@final
@dataclass(frozen=True, eq=False)
class HuggingFaceSource(Source):
    """A ``datasets.Dataset`` of Hugging Face.

    dataset: with columns of booleans, numbers, classes, text, bytes, lists of numbers, and images that are not decoded
    (``dataset.cast_column("image", datasets.Image(decode=False))``), which are bytes
    (those of the file where the dataset has its path alone). Missing values are NaN in columns
    of floats. Raises DataError for columns of other types, and naming row and column for missing values elsewhere.
    """

    dataset: HuggingFaceDataset

    @property
    def columns(self) -> Mapping[str, Column]:
        """What the dataset's features tell."""
        return {name: _feature_column(name, feature) for name, feature in self.dataset.features.items()}

    def __len__(self) -> int:
        return len(self.dataset)

    def rows(self, indices: NDArray) -> Rows:
        """These rows of the dataset."""
        # Plain Python values, whatever format the dataset was given.
        taken: Mapping[str, Sequence[Any]] = self.dataset.with_format(None)[indices.tolist()]
        found: dict[str, Any] = {}
        for name, column in self.columns.items():
            values = taken[name]
            if column.dtype == "bytes":
                values = [_image(cast(Any, value)) if isinstance(value, dict) else value for value in values]
            found[name] = _values(name, column, values, indices)
        return found


def _image(value: Mapping[str, Any]) -> bytes | None:
    """An image that is not decoded is its bytes, or the path of its file."""
    return value["bytes"] if value["bytes"] is not None or value["path"] is None else file_bytes(Path(value["path"]))


def _arrow_column(name: str, kind: Any) -> Column:
    # A category's values come out as they are.
    value = str(getattr(kind, "value_type", kind) if str(kind).startswith("dictionary") else kind)
    if value in DTYPES:
        return Column(DTYPES[value])
    items = DTYPES.get(str(getattr(kind, "value_type", "")), "str")
    if items in ("str", "bytes"):
        raise _unknown(name, str(kind), "")
    size = getattr(kind, "list_size", None)
    return Column(items, (size if isinstance(size, int) else None,))


def _feature_column(name: str, feature: Any) -> Column:
    kind = type(feature).__name__
    if kind == "Image":
        if getattr(feature, "decode", True):
            hint = f'Leave decoding to the pipeline: dataset.cast_column("{name}", datasets.Image(decode=False)).'
            raise _unknown(name, "decoded images", hint)
        return Column("bytes")
    items = getattr(feature, "feature", None)
    dtype = DTYPES.get(str(getattr(feature if items is None else items, "dtype", "")))
    if dtype is None or (items is not None and dtype in ("str", "bytes")):
        raise _unknown(name, str(feature), "")
    if items is None:
        # Of arrays of more dimensions, a feature has the shape; the first length may differ.
        return Column(dtype, tuple(getattr(feature, "shape", None) or ()))
    length = getattr(feature, "length", -1)
    return Column(dtype, (length if isinstance(length, int) and length > 0 else None,))


def _values(name: str, column: Column, values: Sequence[Any], indices: NDArray) -> "NDArray | list[Any]":
    floats = column.dtype.startswith("float")
    for place, value in enumerate(values):
        if (value is None and not (floats and not column.shape)) or (not floats and _has_gap(value)):
            raise DataError(
                f"Row {int(indices[place]) + 1}, column {name!r} is missing.",
                hint="Fill it or leave the row out: only columns of floats have a value for what is missing, NaN.",
                code="data_cell",
                row=int(indices[place]) + 1,
                column=name,
            )
    if column.fixed:
        array = np.array(values, column.dtype)
        return array.reshape(len(values), *cast(tuple[int, ...], column.shape))
    return [np.array(value, column.dtype) for value in values] if column.shape else list(values)


def _has_gap(value: object) -> bool:
    return isinstance(value, list) and None in cast(list[object], value)


def _unknown(name: str, kind: str, hint: str) -> DataError:
    return DataError(
        f"Column {name!r} holds {kind}, which no array is made of.",
        hint=hint or "Select other columns, or convert it to numbers, text, bytes or lists of numbers first.",
        code="data_dtype",
        column=name,
    )
