"""Checking rows against a schema: dtypes, shapes, ranges, classes; the first bad cell is named, the rest are counted.

Casts that are done, none of which changes a value except the first:

    to float32   from float16, float32, float64 (rounded to nearest), from whole numbers up to ±2**24, from text that
    is a number to int32     from whole numbers and booleans in range, from floats and text that are whole to uint8
    the same, 0 to 255

Everything else (dates, complex numbers, mixed objects, missing cells, NaN, infinity) is refused.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from coterie import errors

Array = npt.NDArray[Any]

_EXACT_IN_FLOAT32 = 1 << 24
_WHOLE_RANGE = {"int32": (-(1 << 31), (1 << 31) - 1), "uint8": (0, 255)}


class FeatureLike(Protocol):
    """What this file needs to know of a feature (schema.Feature)."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


class LabelLike(Protocol):
    """What this file needs to know of a label (schema.Label)."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def classes(self) -> tuple[str | int | float, ...] | None: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def check_lengths(arrays: Mapping[str, Array], source: str) -> None:
    """Every array has the same number of rows, and at least one."""
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
    if rows == 0:
        raise errors.DataError(
            f"{source}: there are no rows.", hint="Training needs at least one example.", code="data_empty"
        )


def check_feature(feature: FeatureLike, arrays: Mapping[str, Array], source: str) -> Array:
    """The feature as `[N, *shape]` in its dtype, from one array of that shape or from one `[N]` array per column."""
    expected = f"{feature.dtype}{_range_text(feature.low, feature.high)}"
    columns = list(arrays)
    if columns == [feature.name] and not (feature.columns == (feature.name,) and arrays[feature.name].ndim == 1):
        array = arrays[feature.name]
        if array.shape[1:] != feature.shape:
            raise errors.DataError(
                f"{source}: {feature.name!r} has examples of shape {list(array.shape[1:])}; the schema expects {list(feature.shape)}.",
                hint=_shape_hint(array.shape[1:], feature.shape),
                code="data_shape",
                column=feature.name,
            )
        values = _cast(array, feature.name, feature.dtype, expected, source)
        _check_range(values, array, feature.name, (feature.low, feature.high), expected, source)
        return np.ascontiguousarray(values)
    parts: list[Array] = []
    for column, array in arrays.items():
        _check_flat(column, array, source)
        values = _cast(array, column, feature.dtype, expected, source)
        _check_range(values, array, column, (feature.low, feature.high), expected, source)
        parts.append(values)
    return np.ascontiguousarray(np.stack(parts, axis=1).reshape((len(parts[0]), *feature.shape)))


def check_label(label: LabelLike, arrays: Mapping[str, Array], source: str) -> Array:
    """The label as `[N]` in its dtype: class indices where the schema has classes."""
    ((column, array),) = arrays.items()
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    _check_flat(column, array, source)
    if label.classes is not None:
        return _classes(array, column, label.classes, source)
    expected = f"{label.dtype}{_range_text(label.low, label.high)}"
    values = _cast(array, column, label.dtype, expected, source)
    _check_range(values, array, column, (label.low, label.high), expected, source)
    return np.ascontiguousarray(values)


def _check_flat(column: str, array: Array, source: str) -> None:
    if array.ndim != 1:
        raise errors.DataError(
            f"{source}: column {column!r} has shape {list(array.shape)}; it must hold one value per row.",
            code="data_shape",
            column=column,
        )


def _cast(array: Array, column: str, dtype: str, expected: str, source: str) -> Array:
    """The values in `dtype`, or the error that names the first cell that cannot be one."""
    numbers = _numbers(array, column, expected, source)
    if numbers.dtype.kind == "f":
        finite = np.isfinite(numbers)
        if not finite.all():
            raise _bad_cell(
                ~finite, array, column, "is not a finite number", expected, source, "Drop or fill such rows."
            )
    if dtype == "float32":
        return _to_float32(numbers, array, column, expected, source)
    low, high = _WHOLE_RANGE[dtype]
    if numbers.dtype.kind == "f":
        parted = numbers != np.floor(numbers)
        if parted.any():
            raise _bad_cell(
                parted,
                array,
                column,
                "is not a whole number",
                expected,
                source,
                "Round it, or declare the dtype float32.",
            )
    outside = (numbers < low) | (numbers > high)
    if outside.any():
        raise _bad_cell(
            outside, array, column, f"does not fit {dtype}", expected, source, f"Values go from {low} to {high}."
        )
    return numbers.astype(dtype)


def _to_float32(numbers: Array, array: Array, column: str, expected: str, source: str) -> Array:
    if numbers.dtype.kind in "iu" and numbers.dtype.itemsize > 2:
        inexact = (numbers > _EXACT_IN_FLOAT32) | (numbers < -_EXACT_IN_FLOAT32)
        if inexact.any():
            hint = "Scale the column down or store it as a float, if losing its last digits is meant."
            raise _bad_cell(inexact, array, column, "is a whole number too large for float32", expected, source, hint)
    with np.errstate(over="ignore"):
        values = numbers.astype(np.float32)
    if numbers.dtype.kind == "f" and numbers.dtype.itemsize > 4:
        beyond = ~np.isfinite(values)
        if beyond.any():
            raise _bad_cell(
                beyond, array, column, "is too large for float32", expected, source, "Scale the column down."
            )
    return values


def _numbers(array: Array, column: str, expected: str, source: str) -> Array:
    """The array as numbers: text and objects parsed cell by cell, anything without numbers refused."""
    kind = array.dtype.kind
    if kind == "b":
        return array.astype(np.uint8)
    if kind in "iu" or (kind == "f" and array.dtype.itemsize <= 8):
        return array
    if kind in "USO":
        cells = cast(list[object], array.reshape(-1).tolist())
        parsed = np.array([_parse(cell) for cell in cells], np.float64)
        missing = np.isnan(parsed).reshape(array.shape)
        if missing.any():
            raise _bad_cell(missing, array, column, "is not a number", expected, source, "Mend or drop such rows.")
        return parsed.reshape(array.shape)
    raise errors.DataError(
        f"{source}: {column!r} has the dtype {array.dtype}, which holds no plain numbers; the schema expects {expected}.",
        hint="Convert it to float32, int32 or uint8 before it is loaded.",
        code="data_dtype",
        column=column,
    )


def _parse(cell: object) -> float:
    """A cell as a number.

    NaN stands for everything that is not one. Underscores, which Python's float takes, are not numbers here.
    """
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "replace")
    if isinstance(cell, str) and "_" in cell:
        return math.nan
    if not isinstance(cell, str | int | float):
        return math.nan
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return math.nan


def _classes(array: Array, column: str, classes: Sequence[str | int | float], source: str) -> Array:
    """Class indices.

    A cell matches a class of the same text; a number, or text that is one, also matches the class of equal value.
    """
    by_text = {str(raw): index for index, raw in enumerate(classes)}
    by_number = {number: index for index, raw in enumerate(classes) if not math.isnan(number := _parse(raw))}
    if array.dtype.kind not in "biufUSO":
        raise errors.DataError(
            f"{source}: {column!r} has the dtype {array.dtype}, which holds no labels.",
            code="data_dtype",
            column=column,
        )
    distinct: dict[object, int] = {}
    indices = np.empty(len(array), np.int32)
    for row, cell in enumerate(cast(list[object], array.tolist())):
        key = cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell
        if not isinstance(key, str | int | float):
            key = str(key)
        if key not in distinct:
            text = by_text.get(key.strip()) if isinstance(key, str) else None
            distinct[key] = text if text is not None else by_number.get(_parse(key), -1)
        indices[row] = distinct[key]
    unknown = indices < 0
    if unknown.any():
        shown = ", ".join(repr(raw) for raw in classes[:10]) + (" …" if len(classes) > 10 else "")
        raise _bad_cell(unknown, array, column, "is not a class", f"one of {shown}", source, "Mend or drop such rows.")
    return indices


def _check_range(
    values: Array, array: Array, column: str, bounds: tuple[float | None, float | None], expected: str, source: str
) -> None:
    low, high = bounds
    outside = np.zeros(values.shape, np.bool_)
    wide = values.astype(np.float64) if values.dtype.kind != "f" else values
    if low is not None:
        outside |= wide < _like(low, values)
    if high is not None:
        outside |= wide > _like(high, values)
    if outside.any():
        raise _bad_cell(
            outside, array, column, "is out of range", expected, source, "Mend the cell, or widen the schema's range."
        )


def _like(bound: float, values: Array) -> float:
    """The bound as the data sees it: 0.1 rounded to float32 must pass a bound of 0.1."""
    return float(np.float32(bound)) if values.dtype == np.float32 else bound


def _bad_cell(
    bad: Array, array: Array, column: str, why: str, expected: str, source: str, hint: str
) -> errors.DataError:
    """The error for the first True in `bad`, an array of the shape of `array` (row first)."""
    position: tuple[int, ...] = tuple(cast(list[int], np.argwhere(bad)[0].tolist()))
    cell = cast(object, array[position])
    shown = repr(cell.item() if isinstance(cell, np.generic) else cell)[:60]
    inside = f", element {list(position[1:])}" if len(position) > 1 else ""
    more = int(bad.sum()) - 1
    rest = f" {more} more cell{'s' if more > 1 else ''} in this column likewise." if more else ""
    return errors.DataError(
        f"{source}: column {column!r}, row {position[0] + 1}{inside}: {shown} {why}; the schema expects {expected}.{rest}",
        hint=hint,
        code="data_cell",
        column=column,
        row=position[0] + 1,
        others=more,
    )


def _range_text(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return ""
    return f" from {'any' if low is None else f'{low:g}'} to {'any' if high is None else f'{high:g}'}"


def _shape_hint(got: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    if math.prod(got) == math.prod(wanted):
        return f"The number of elements agrees: reshape the array to (-1, {', '.join(map(str, wanted))})."
    return "Load the array with one example per row, in the schema's shape."
