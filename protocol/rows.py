"""Checking rows against a schema: dtypes, shapes, ranges, classes; the first bad cell is named, the rest are counted.

Casts that are done, none of which changes a value except the first:

- to float32 from float16, float32, float64 (rounded to nearest), from whole numbers up to ±2**24, from text that is a
  number;
- to int32 from whole numbers and booleans in range, from floats and text that are whole;
- to int16, int8 and uint8 from the same.

Everything else (dates, complex numbers, mixed objects, missing cells, NaN, infinity) is refused.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from coterie import errors
from coterie.protocol.arrays import AnyArray
from coterie.protocol.finite import all_finite
from coterie.protocol.schema_rules import FeatureFields, LabelFields, range_of
from coterie.protocol.texts import as_bytes, as_places, text_of, texts_of

_EXACT_IN_FLOAT32 = 1 << 24


@dataclass(frozen=True)
class _Cells:
    """One array as it came, with all that an error about it must say.

    numbers: what to call its rows; 1, 2, … without.
    """

    array: AnyArray
    column: str
    expected: str
    source: str
    numbers: AnyArray | None = None

    def refuse(self, bad: AnyArray, why: str, hint: str) -> errors.DataError:
        """The error that names the first True of `bad` (of the array's shape) and counts the others."""
        position: tuple[int, ...] = cast(tuple[int, ...], tuple(cast(Any, np.argwhere(bad)).tolist()[0]))
        row = position[0] + 1 if self.numbers is None else int(self.numbers[position[0]])
        inside = f", element {list(position[1:])}" if len(position) > 1 else ""
        shown = repr(cast(object, self.array.item(position)))[:60]
        others = int(bad.sum()) - 1
        rest = f" {others} more cell{'s' if others > 1 else ''} in this column have the same problem." if others else ""
        where = f"{self.source}: column {self.column!r}, row {row}{inside}"
        return errors.DataError(
            f"{where}: {shown} {why}; the schema expects {self.expected}.{rest}",
            hint=hint,
            code="data_cell",
            column=self.column,
            row=row,
            others=others,
        )

    def refuse_whole(self, why: str, hint: str, code: str) -> errors.DataError:
        """The error about the array as a whole."""
        return errors.DataError(
            f"{self.source}: column {self.column!r} {why}; the schema expects {self.expected}.",
            hint=hint,
            code=code,
            column=self.column,
        )


def check_lengths(arrays: Mapping[str, AnyArray], source: str, *, least: int = 1) -> None:
    """Every array has the same number of rows, and so many at least."""
    for name, array in arrays.items():
        if array.ndim == 0:
            raise errors.DataError(f"{source}: {name!r} is a single value, not rows.", code="data_shape", column=name)
    first, *rest = arrays
    rows = len(arrays[first])
    for name in rest:
        if len(arrays[name]) != rows:
            raise errors.DataError(
                f"{source}: {name!r} has {len(arrays[name])} rows but {first!r} has {rows}.",
                hint="Every feature and the label need one entry per example.",
                code="data_lengths",
                column=name,
            )
    if rows < least:
        raise errors.DataError(f"{source}: there are no rows.", hint="Add at least one example.", code="data_empty")


def check_feature(
    feature: FeatureFields,
    arrays: Mapping[str, AnyArray],
    source: str,
    *,
    read: bool = False,
    numbers: AnyArray | None = None,
) -> AnyArray:
    """The feature as `[N, *shape]` in its dtype, from one array of that shape or from one `[N]` array per column; one
    of text from one `[N]` array, from the bytes themselves, or from places in the vocabulary.

    read: whether the array is known to hold what this function returned. Else whole numbers are taken for places where
    no text of the vocabulary is a number.
    numbers: what to call the rows in messages; 1, 2, … without.
    """
    if feature.encoding is not None or feature.vocabulary is not None:
        ((column, array),) = arrays.items()
        return _from_text(feature, _Cells(array, column, "text", source, numbers), read=read)
    return _shaped(feature, arrays, source, numbers)


def _shaped(
    field: FeatureFields | LabelFields, arrays: Mapping[str, AnyArray], source: str, numbers: AnyArray | None
) -> AnyArray:
    """The numbers of a feature or a label as `[N, *shape]`."""
    expected = _expected(field.dtype, field.low, field.high)
    columns = tuple(arrays)
    if columns == (field.name,) and not (field.columns == columns and arrays[field.name].ndim == 1):
        wanted = f"{expected} of shape {list(field.shape)}"
        cells = _Cells(arrays[field.name], field.name, wanted, source, numbers)
        shape = cells.array.shape[1:]
        if shape != field.shape:
            raise cells.refuse_whole(
                f"has examples of shape {list(shape)}", _shape_hint(shape, field.shape), "data_shape"
            )
        return np.ascontiguousarray(_values(cells, field.dtype, field.low, field.high))
    parts: list[AnyArray] = []
    for column, array in arrays.items():
        cells = _require_flat(_Cells(array, column, expected, source, numbers))
        parts.append(_values(cells, field.dtype, field.low, field.high))
    return np.ascontiguousarray(np.stack(parts, axis=1).reshape((len(parts[0]), *field.shape)))


def _from_text(feature: FeatureFields, cells: _Cells, *, read: bool) -> AnyArray:
    held_as_bytes = feature.encoding is not None and cells.array.dtype == np.uint8
    if held_as_bytes and cells.array.shape[1:] == feature.shape:
        return np.ascontiguousarray(cells.array)
    if feature.vocabulary is not None and read:
        return _places(_require_flat(cells), len(feature.vocabulary), "is not an index into the vocabulary")
    if feature.vocabulary is not None and _are_places(cells, feature.vocabulary):
        return _known_places(_require_flat(cells), 1, len(feature.vocabulary), other=0)
    texts = texts_of(_require_flat(cells).array)
    if texts is None:
        hint = "Convert it to text before it is loaded."
        raise cells.refuse_whole(f"has the dtype {cells.array.dtype}, which holds no text", hint, "data_dtype")
    return as_bytes(texts, feature.shape[0]) if feature.vocabulary is None else as_places(texts, feature.vocabulary)


def _are_places(cells: _Cells, texts: Sequence[str | int | float]) -> bool:
    """Whether whole numbers can only be places among these texts, since none of the texts is a number."""
    return cells.array.dtype.kind in "iu" and all(math.isnan(_parse(text)) for text in texts)


def _places(cells: _Cells, most: int, why: str) -> AnyArray:
    """Places from 0 to ``most``, as int32."""
    if (outside := (cells.array < 0) | (cells.array > most)).any():
        raise cells.refuse(outside, why, f"Give text, or places from 0 to {most}.")
    return np.ascontiguousarray(cells.array.astype(np.int32, copy=False))


def _known_places(cells: _Cells, low: int, high: int, *, other: int) -> AnyArray:
    """Places as int32; ``other`` for whole numbers that are none. No cell changes how another one is read."""
    known = (cells.array >= low) & (cells.array <= high)
    return np.where(known, cells.array, other).astype(np.int32)


def with_classes(rows: Mapping[str, AnyArray], label: LabelFields) -> dict[str, AnyArray]:
    """The rows whose label is one of the classes; perhaps none.

    rows: checked, with -1 for any other label.
    """
    kept = has_class(rows, label)
    return dict(rows) if kept is None or kept.all() else {name: array[kept] for name, array in rows.items()}


def has_class(rows: Mapping[str, AnyArray], label: LabelFields) -> AnyArray | None:
    """Which rows, checked, have one of the classes; None where all others were refused."""
    return rows[label.name] >= 0 if label.others == "dropped" else None


def check_left(count: int, label: LabelFields, source: str) -> None:
    """Raise DataError (``data_empty``) where no row is left, since none has one of the label's classes."""
    if not count:
        shown = ", ".join(repr(raw) for raw in (label.classes or ())[:10])
        raise errors.DataError(
            f"{source}: no row has one of the classes {shown} as its {label.name!r}.",
            hint="Check the column; rows of other classes are dropped, and none is left.",
            code="data_empty",
            column=label.name,
        )


def check_label(
    label: LabelFields,
    arrays: Mapping[str, AnyArray],
    source: str,
    *,
    read: bool = False,
    numbers: AnyArray | None = None,
) -> AnyArray:
    """The label as `[N, *shape]` in its dtype: class indices where the schema has classes (-1 for others that are to be
    dropped). `[N, 1]` is taken for `[N]`.

    read, numbers: as in `check_feature`.
    """
    if label.shape:
        return _shaped(label, arrays, source, numbers)
    ((column, array),) = arrays.items()
    flat = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if label.classes is not None:
        shown = ", ".join(repr(raw) for raw in label.classes[:10]) + (" …" if len(label.classes) > 10 else "")
        cells = _require_flat(_Cells(flat, column, f"one of {shown}", source, numbers))
        if read:
            return _places(cells, len(label.classes) - 1, "is no class")
        if _are_places(cells, label.classes):
            indices = _known_places(cells, 0, len(label.classes) - 1, other=-1)
        else:
            indices = _class_indices(cells, label.classes)
        if label.others == "refused" and (unknown := indices < 0).any():
            hint = "Fix or drop such rows, or add the class to the schema."
            raise cells.refuse(unknown, "is not a class", hint)
        return indices
    expected = _expected(label.dtype, label.low, label.high)
    cells = _require_flat(_Cells(flat, column, expected, source, numbers))
    return np.ascontiguousarray(_values(cells, label.dtype, label.low, label.high))


def _require_flat(cells: _Cells) -> _Cells:
    if cells.array.ndim != 1:
        hint = "Give one value per row."
        raise cells.refuse_whole(f"has shape {list(cells.array.shape)}", hint, "data_shape")
    return cells


def _values(cells: _Cells, dtype: str, low: float | None, high: float | None) -> AnyArray:
    """The cells in `dtype` and within the bounds, or the error that names the first that is not."""
    numbers = _numbers(cells)
    if numbers.dtype.kind == "f" and not all_finite(numbers.ravel(order="K")):
        raise cells.refuse(~np.isfinite(numbers), "is not a finite number", "Fix or drop such rows.")
    values = _to_float32(numbers, cells) if dtype == "float32" else _to_whole(numbers, dtype, cells)
    # A bound of 0.1 must let pass the float32 nearest to 0.1, so bounds are rounded as the data is.
    bounds = tuple(
        None if bound is None else values.dtype.type(bound) if dtype == "float32" else bound for bound in (low, high)
    )
    if bounds[0] is not None and values.size and values.min() < bounds[0]:
        raise cells.refuse(values < bounds[0], "is too low", "Fix the cell, or lower the schema's bound.")
    if bounds[1] is not None and values.size and values.max() > bounds[1]:
        raise cells.refuse(values > bounds[1], "is too high", "Fix the cell, or raise the schema's bound.")
    return values


def _to_float32(numbers: AnyArray, cells: _Cells) -> AnyArray:
    if numbers.dtype.kind in "iu" and numbers.dtype.itemsize > 2:
        inexact = (numbers > _EXACT_IN_FLOAT32) | (numbers < -_EXACT_IN_FLOAT32)
        if inexact.any():
            hint = "Scale the column down; or store it as a float, if losing its last digits is acceptable."
            raise cells.refuse(inexact, "is a whole number too large for float32", hint)
    with np.errstate(over="ignore"):
        values = numbers.astype(np.float32, copy=False)
    # Whatever the order of its bytes, which equality of dtypes would ask for.
    if numbers.dtype.kind == "f" and numbers.dtype.itemsize > 4 and not all_finite(values.ravel(order="K")):
        raise cells.refuse(~np.isfinite(values), "is too large for float32", "Scale the column down.")
    return values


def _to_whole(numbers: AnyArray, dtype: str, cells: _Cells) -> AnyArray:
    low, high = range_of(dtype)
    if numbers.dtype.kind == "f":
        numbers = numbers.astype(np.float64)  # float32 cannot tell 2**31 - 1 from 2**31
        parted = numbers != np.floor(numbers)
        if parted.any():
            raise cells.refuse(parted, "is not a whole number", "Round it, or declare the dtype float32.")
    outside = (numbers < low) | (numbers > high)
    if outside.any():
        raise cells.refuse(outside, f"does not fit {dtype}", f"Values of {dtype} go from {low} to {high}.")
    return numbers.astype(dtype)


def _numbers(cells: _Cells) -> AnyArray:
    """The array as numbers: text and objects parsed cell by cell, anything without plain numbers refused."""
    array = cells.array
    kind, width = array.dtype.kind, array.dtype.itemsize
    if kind == "b":
        return array.astype(np.uint8)
    if kind in "iu" or (kind == "f" and width <= 8):
        return array
    if kind in "USO":
        flat = cast(list[object], array.reshape(-1).tolist())
        parsed = np.array([_parse(cell) for cell in flat], np.float64).reshape(array.shape)
        missing = np.isnan(parsed)
        if missing.any():
            raise cells.refuse(missing, "is not a number", "Fix or drop such rows.")
        return parsed
    hint = "Convert it to float32 or to whole numbers before it is loaded."
    raise cells.refuse_whole(f"has the dtype {array.dtype}, which is not a numeric dtype", hint, "data_dtype")


def _parse(cell: object) -> float:
    """A cell as a number; NaN stands for what is none. Underscores, which Python's float takes, are refused."""
    text = cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell
    if not isinstance(text, str | int | float) or (isinstance(text, str) and "_" in text):
        return math.nan
    try:
        return float(text)
    except (ValueError, OverflowError):
        return math.nan


def _class_indices(cells: _Cells, classes: Sequence[str | int | float]) -> AnyArray:
    """A cell is the class of the same text; a number, or text that is one, is also the class of equal value; -1 for a
    cell that is none. What text a number has is said in `texts`.
    """
    if cells.array.dtype.kind not in "biufUSO":
        hint = "Convert it to text or whole numbers before it is loaded."
        raise cells.refuse_whole(f"has the dtype {cells.array.dtype}, which holds no labels", hint, "data_dtype")
    by_text = {str(raw): index for index, raw in enumerate(classes)}
    # Of texts of one value the first, where a number says no more.
    valued = [(number, index) for index, raw in enumerate(classes) if not math.isnan(number := _parse(raw))]
    by_number = dict(reversed(valued))
    known: dict[object, int] = {}
    indices = np.empty(len(cells.array), np.int32)
    for row, cell in enumerate(cast(list[object], cells.array.tolist())):
        raw = cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell
        key = raw if isinstance(raw, str | int | float) else str(raw)
        if key not in known:
            found = by_text.get(key.strip()) if isinstance(key, str) else by_text.get(text_of(key))
            known[key] = by_number.get(_parse(key), -1) if found is None else found
        indices[row] = known[key]
    return indices


def _expected(dtype: str, low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return dtype
    if low is None or high is None:
        return f"{dtype} {'≥' if high is None else '≤'} {low if high is None else high:g}"
    return f"{dtype} from {low:g} to {high:g}"


def _shape_hint(got: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    if math.prod(got) == math.prod(wanted):
        return f"The number of elements agrees: reshape the array to {[-1, *wanted]}."
    return "Load the array with one example per row, in the schema's shape."
