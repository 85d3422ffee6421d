"""Reductions over axes (all of them when axis is None). bool and integers of 8 and 16 bits are added and multiplied as
int32.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.compute.array_type import Array, ArrayLike, as_array, bind, refuse
from coterie.compute.ir import NARROW
from coterie.compute.numpy import manipulation
from coterie.compute.numpy.elementwise import sqrt
from coterie.compute.numpy.manipulation import axis_of
from coterie.compute.primitives import rules
from coterie.compute.source import operation
from coterie.errors import DTypeError, ShapeError

Axis = int | Sequence[int] | None


def _axes(name: str, array: Array, axis: Axis) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(array.ndim))
    given = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    return tuple(sorted(axis_of(name, array, a) for a in given))


def _count(array: Array, axes: tuple[int, ...]) -> int:
    return int(np.prod([array.shape[a] for a in axes], dtype=np.int64))


def countable(array: Array, dtype: Any = None) -> Array:
    """The array in the dtype in which its elements are added and multiplied."""
    if dtype is not None:
        return rules.cast(array, np.dtype(dtype).name)
    return rules.cast(array, "int32") if array.type.dtype in ("bool", "uint8", *NARROW) else array


@operation
def sum(x: ArrayLike, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Array:
    """The sum; of a bool array, the number of true elements."""
    array = countable(as_array(x), dtype)
    return bind("sum", array, axes=_axes("sum", array, axis), keepdims=keepdims)


@operation
def prod(x: ArrayLike, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Array:
    """The product: of both halves, again and again. Its gradient holds where elements are 0 too."""
    array = countable(as_array(x), dtype)
    axes = _axes("prod", array, axis)
    kept = tuple(1 if i in axes else n for i, n in enumerate(array.shape))
    others = tuple(i for i in range(array.ndim) if i not in axes)
    rows = tuple(array.shape[i] for i in others)
    size = _count(array, axes)
    flat = manipulation.reshape(manipulation.permute_dims(array, (*others, *axes)), (*rows, size))
    place = len(rows)
    if size == 0:
        flat, size = bind("broadcast_to", rules.number(1, array), shape=(*rows, 1)), 1
    while size > 1:
        half = size // 2
        product = manipulation.slice_along(flat, place, 0, half) * manipulation.slice_along(flat, place, half, 2 * half)
        odd = [manipulation.slice_along(flat, place, 2 * half, size)] if size % 2 else []
        flat = manipulation.concat([product, *odd], axis=place)
        size = flat.shape[place]
    return manipulation.reshape(flat, kept if keepdims else rows)


@operation
def count_nonzero(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """The int32 number of elements that are not 0."""
    array = as_array(x)
    return sum(_true(array), axis=_axes("count_nonzero", array, axis), keepdims=keepdims)


@operation
def mean(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """The arithmetic mean of floats; of none, NaN."""
    array = as_array(x)
    if not array.type.is_float:
        refuse(DTypeError, "mean", (array,), "the mean needs floats.", 'Convert with astype(x, "float32").')
    axes = _axes("mean", array, axis)
    count = _count(array, axes)
    return sum(array, axis=axes, keepdims=keepdims) * (1.0 / count if count else np.nan)


@operation
def var(x: ArrayLike, axis: Axis = None, keepdims: bool = False, *, correction: float = 0.0) -> Array:
    """Squared distances from the mean, summed, over (count - correction): 0 for a population, 1 for a sample. Of none,
    NaN.
    """
    array = as_array(x)
    centred = array - mean(array, axis=axis, keepdims=True)
    count = _count(array, _axes("var", array, axis))
    if correction == 0 or count == 0:
        return mean(centred * centred, axis=axis, keepdims=keepdims)
    freedom = count - correction
    if freedom <= 0:
        reason = f"{correction} is no correction for {count} elements."
        refuse(ShapeError, "var", (array,), reason, "Reduce over more elements than the correction.")
    return sum(centred * centred, axis=axis, keepdims=keepdims) * (1.0 / freedom)


@operation
def std(x: ArrayLike, axis: Axis = None, keepdims: bool = False, *, correction: float = 0.0) -> Array:
    """The square root of :func:`var`. Its gradient is infinite where all elements are equal."""
    return sqrt(var(x, axis=axis, keepdims=keepdims, correction=correction))


def _ordered(name: str, x: ArrayLike) -> Array:
    array = as_array(x)
    if array.type.dtype == "bool":
        refuse(DTypeError, name, (array,), "bool has no order.", 'Convert it with astype(x, "int32"), or use any, all.')
    return array


@operation
def max(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """The greatest element; several greatest share the gradient."""
    array = _ordered("max", x)
    return bind("max", array, axes=_axes("max", array, axis), keepdims=keepdims)


def _reversed(array: Array) -> Array:
    """The same elements in reverse order of size; twice gives the array again, of every integer too."""
    if array.type.is_float:
        return bind("negative", array)
    return (255 if array.type.dtype == "uint8" else -1) - array


@operation
def min(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """The smallest element; several smallest share the gradient."""
    array = _ordered("min", x)
    return _reversed(max(_reversed(array), axis=_axes("min", array, axis), keepdims=keepdims))


def _true(array: Array) -> Array:
    return array if array.type.dtype == "bool" else array != 0


@operation
def any(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether some element is true (not 0); of none, False."""
    array = as_array(x)
    axes = _axes("any", array, axis)
    if _count(array, axes) == 0:
        return count_nonzero(array, axis=axes, keepdims=keepdims) > 0
    return max(rules.cast(_true(array), "float32"), axis=axes, keepdims=keepdims) > 0.0


@operation
def all(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether every element is true (not 0); of none, True."""
    array = as_array(x)
    axes = _axes("all", array, axis)
    if _count(array, axes) == 0:
        return count_nonzero(array, axis=axes, keepdims=keepdims) == 0
    return min(rules.cast(_true(array), "float32"), axis=axes, keepdims=keepdims) > 0.0


@operation
def argmax(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Array:
    """The int32 position of the first greatest element along an axis (None: of all elements in row-major order),
    without ArgMax, which some providers lack. Among NaN it is some position of the axis.
    """
    return _position("argmax", _ordered("argmax", x), axis, keepdims)


@operation
def argmin(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Array:
    """The int32 position of the first smallest element along an axis (None: of all)."""
    return _position("argmin", _reversed(_ordered("argmin", x)), axis, keepdims)


def _position(name: str, array: Array, axis: int | None, keepdims: bool) -> Array:
    if axis is None:
        flat = _position(name, manipulation.reshape(array, -1), 0, False)
        return manipulation.reshape(flat, (1,) * array.ndim) if keepdims else flat
    place = axis_of(name, array, axis)
    count = array.shape[place]
    shape = tuple(count if i == place else 1 for i in range(array.ndim))
    # Counting down makes the first of several greatest the largest. What nothing beats is greatest: that leaves a
    # position among NaN too, which equal nothing.
    countdown = Array(np.arange(count, 0, -1, dtype=np.float32).reshape(shape))
    beaten = rules.greater_mask(max(array, axis=place, keepdims=True), array, "float32")
    return rules.cast(count - max(countdown - beaten * float(count), axis=place, keepdims=keepdims), "int32")
