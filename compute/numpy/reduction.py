"""Reductions over axes (all of them when axis is None)."""

from collections.abc import Sequence

import numpy as np

from coterie.compute.array import Array, ArrayLike, as_array, bind, refuse
from coterie.compute.numpy.manipulation import axis_of
from coterie.compute.primitives import rules
from coterie.errors import DTypeError, ShapeError

Axis = int | Sequence[int] | None


def _axes(name: str, array: Array, axis: Axis) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(array.ndim))
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    return tuple(sorted(axis_of(name, array, a) for a in given))


def sum(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """The sum; of a bool array, the int32 number of true elements."""
    array = as_array(x)
    array = rules.cast(array, "int32") if array.type.dtype == "bool" else array
    return bind("sum", array, axes=_axes("sum", array, axis), keepdims=keepdims)


def mean(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """The arithmetic mean of floats."""
    array = as_array(x)
    if not array.type.is_float:
        refuse(DTypeError, "mean", (array,), "the mean needs floats.", 'Convert with astype(x, "float32").')
    axes = _axes("mean", array, axis)
    count = int(np.prod([array.shape[a] for a in axes], dtype=np.int64))
    if count == 0:
        refuse(ShapeError, "mean", (array,), "the mean of nothing.", "Reduce over axes that are not empty.")
    return sum(array, axis=axes, keepdims=keepdims) * (1.0 / count)


def var(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """The variance (of the whole population)."""
    array = as_array(x)
    centred = array - mean(array, axis=axis, keepdims=True)
    return mean(centred * centred, axis=axis, keepdims=keepdims)


def max(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """The greatest element; several greatest share the gradient."""
    array = as_array(x)
    return bind("max", array, axes=_axes("max", array, axis), keepdims=keepdims)


def min(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """The smallest element; several smallest share the gradient."""
    return bind("negative", max(bind("negative", as_array(x)), axis=axis, keepdims=keepdims))


def any(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether some element is true."""
    return max(rules.cast(as_array(x), "float32"), axis=axis, keepdims=keepdims) > 0.0


def all(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether every element is true."""
    return min(rules.cast(as_array(x), "float32"), axis=axis, keepdims=keepdims) > 0.0


def argmax(x: ArrayLike, axis: int = -1, keepdims: bool = False) -> Array:
    """The int32 position of the first greatest element along an axis, without ArgMax, which some providers lack."""
    array = as_array(x)
    place = axis_of("argmax", array, axis)
    count = array.shape[place]
    shape = tuple(count if i == place else 1 for i in range(array.ndim))
    # Counting down makes the first of several greatest the largest.
    countdown = Array(np.arange(count, 0, -1, dtype=np.float32).reshape(shape))
    mask = rules.equal_mask(array, max(array, axis=place, keepdims=True), "float32")
    return rules.cast(count - max(mask * countdown, axis=place, keepdims=keepdims), "int32")


def argmin(x: ArrayLike, axis: int = -1, keepdims: bool = False) -> Array:
    """The int32 position of the first smallest element along an axis."""
    return argmax(bind("negative", as_array(x)), axis=axis, keepdims=keepdims)
