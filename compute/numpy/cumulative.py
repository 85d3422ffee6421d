"""Sums and products of everything up to each element along an axis."""

from typing import Any

import numpy as np

from coterie.compute.array_type import Array, ArrayLike, as_array, bind, refuse
from coterie.compute.numpy import manipulation
from coterie.compute.numpy.manipulation import axis_of
from coterie.compute.numpy.reduction import countable
from coterie.compute.primitives import rules
from coterie.compute.source import operation
from coterie.errors import ShapeError


def _prepared(name: str, x: ArrayLike, axis: int | None, dtype: Any) -> tuple[Array, int]:
    array = countable(as_array(x), dtype)
    if axis is None and array.ndim != 1:
        refuse(ShapeError, name, (array,), f"{array.ndim} axes, and none is named.", "Pass axis=...")
    return array, axis_of(name, array, axis or 0)


def _with_initial(result: Array, axis: int, initial: float) -> Array:
    first = Array(np.full((*result.shape[:axis], 1, *result.shape[axis + 1 :]), initial, result.dtype))
    return manipulation.concat([first, result], axis=axis)


@operation
def cumulative_sum(x: ArrayLike, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """The sum of the elements up to each; with include_initial also of none, first. axis may be left out for a vector.
    bool and integers of 8 and 16 bits are added as int32.
    """
    array, place = _prepared("cumulative_sum", x, axis, dtype)
    result = bind("cumsum", array, axis=place, reverse=False)
    return _with_initial(result, place, 0) if include_initial else result


@operation
def cumulative_prod(
    x: ArrayLike, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    """The product of the elements up to each, in log2(n) products of shifted arrays; gradients hold at zeros too."""
    array, place = _prepared("cumulative_prod", x, axis, dtype)
    size, shift, result = array.shape[place], 1, array
    while shift < size:
        earlier = manipulation.slice_along(result, place, 0, size - shift)
        before, after = [0] * array.ndim, (0,) * array.ndim
        before[place] = shift
        result = result * bind("pad", earlier, before=tuple(before), after=after, value=1.0)
        shift *= 2
    return _with_initial(result, place, 1) if include_initial else result


@operation
def diff(
    x: ArrayLike, *, axis: int = -1, n: int = 1, prepend: ArrayLike | None = None, append: ArrayLike | None = None
) -> Array:
    """Each element minus the one before it, n times; ``prepend`` and ``append`` stand at the ends first."""
    array = as_array(x)
    place = axis_of("diff", array, axis)
    parts = [part for part in (prepend, array, append) if part is not None]
    array = manipulation.concat(parts, axis=place)
    if n < 0:
        refuse(ShapeError, "diff", (array,), f"{n} differences.", "n is at least 0.")
    for _ in range(n):
        size = array.shape[place]
        later = manipulation.slice_along(array, place, min(1, size), size)
        earlier = manipulation.slice_along(array, place, 0, max(size - 1, 0))
        array = later - earlier if array.type.dtype != "bool" else rules.cast(later != earlier, "bool")
    return array
