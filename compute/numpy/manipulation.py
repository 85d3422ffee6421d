"""Shapes and order of elements."""

from collections.abc import Sequence
from math import prod

import numpy as np

from coterie.compute.array import Array, ArrayLike, as_array, bind, promote, refuse
from coterie.compute.primitives import rules
from coterie.errors import ShapeError


def axis_of(name: str, array: Array, axis: int, rank: int | None = None) -> int:
    """The axis counted from the front. Raises ShapeError when it does not exist."""
    count = array.ndim if rank is None else rank
    if not -count <= axis < count:
        refuse(ShapeError, name, (array,), f"axis {axis} does not exist.", f"The array has {count} axes.")
    return axis % count


def reshape(x: ArrayLike, shape: int | Sequence[int]) -> Array:
    """The same elements in row-major order in another shape; one size may be -1."""
    array = as_array(x)
    target = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    if target.count(-1) == 1:
        known = prod(n for n in target if n != -1)
        if known == 0 or array.size % known:
            refuse(
                ShapeError,
                "reshape",
                (array,),
                f"{array.size} elements do not fill the shape {list(target)}.",
                "The number of elements must stay.",
            )
        target = tuple(array.size // known if n == -1 else n for n in target)
    return bind("reshape", array, shape=target) if target != array.shape else array


def permute_dims(x: ArrayLike, axes: Sequence[int]) -> Array:
    """The array with its axes in this order."""
    array = as_array(x)
    return bind("transpose", array, permutation=tuple(axis_of("permute_dims", array, axis) for axis in axes))


def matrix_transpose(x: ArrayLike) -> Array:
    """The array with its last two axes exchanged."""
    array = as_array(x)
    if array.ndim < 2:
        refuse(
            ShapeError, "matrix_transpose", (array,), "a transposition needs two axes.", "Reshape to a matrix first."
        )
    return rules.swap_last(array)


def moveaxis(x: ArrayLike, source: int, destination: int) -> Array:
    """Move one axis to another place."""
    array = as_array(x)
    order = [axis for axis in range(array.ndim) if axis != axis_of("moveaxis", array, source)]
    order.insert(axis_of("moveaxis", array, destination), axis_of("moveaxis", array, source))
    return permute_dims(array, order)


def expand_dims(x: ArrayLike, axis: int = 0) -> Array:
    """A new axis of size 1 at this place."""
    array = as_array(x)
    place = axis_of("expand_dims", array, axis, array.ndim + 1)
    return bind("reshape", array, shape=(*array.shape[:place], 1, *array.shape[place:]))


def squeeze(x: ArrayLike, axis: int | Sequence[int]) -> Array:
    """Remove axes of size 1."""
    array = as_array(x)
    axes = {axis_of("squeeze", array, a) for a in ((axis,) if isinstance(axis, int) else axis)}
    if any(array.shape[a] != 1 for a in axes):
        refuse(
            ShapeError,
            "squeeze",
            (array,),
            f"the axes {sorted(axes)} are not all of size 1.",
            "Only axes of size 1 can be removed.",
        )
    return reshape(array, tuple(n for i, n in enumerate(array.shape) if i not in axes))


def broadcast_to(x: ArrayLike, shape: Sequence[int]) -> Array:
    """The array repeated along axes of size 1 and new leading axes."""
    return rules.broadcast_to(as_array(x), tuple(shape))


def concat(arrays: Sequence[ArrayLike], *, axis: int | None = 0) -> Array:
    """The arrays one after another along an axis (None: all flattened)."""
    operands = promote("concat", *arrays)
    if axis is None:
        operands, axis = tuple(reshape(array, -1) for array in operands), 0
    return operands[0] if len(operands) == 1 else bind("concat", *operands, axis=axis_of("concat", operands[0], axis))


def stack(arrays: Sequence[ArrayLike], *, axis: int = 0) -> Array:
    """The arrays beside one another along a new axis."""
    operands = promote("stack", *arrays)
    place = axis_of("stack", operands[0], axis, operands[0].ndim + 1)
    return concat([expand_dims(array, place) for array in operands], axis=place)


def split(x: ArrayLike, sizes: Sequence[int], *, axis: int = 0) -> list[Array]:
    """The array cut along an axis into parts of these sizes, which must add up."""
    array = as_array(x)
    place = axis_of("split", array, axis)
    if sum(sizes) != array.shape[place]:
        refuse(
            ShapeError,
            "split",
            (array,),
            f"the sizes {list(sizes)} add up to {sum(sizes)}, not {array.shape[place]}.",
            "Cover the whole axis.",
        )
    parts: list[Array] = []
    start = 0
    for size in sizes:
        starts, stops = [0] * array.ndim, list(array.shape)
        starts[place], stops[place] = start, start + size
        parts.append(bind("slice", array, starts=tuple(starts), stops=tuple(stops)))
        start += size
    return parts


def pad(x: ArrayLike, widths: Sequence[tuple[int, int]], *, value: float = 0.0) -> Array:
    """The array with (before, after) more elements of one value on each axis."""
    return bind(
        "pad", as_array(x), before=tuple(a for a, _ in widths), after=tuple(b for _, b in widths), value=float(value)
    )


def take(x: ArrayLike, indices: ArrayLike, *, axis: int = 0) -> Array:
    """The slices at these integer positions along an axis. A position outside is an error at run time."""
    array = as_array(x)
    return bind("gather", array, as_array(indices), axis=axis_of("take", array, axis))


def flip(x: ArrayLike, *, axis: int) -> Array:
    """The array in reverse order along an axis."""
    array = as_array(x)
    place = axis_of("flip", array, axis)
    return take(array, Array(np.arange(array.shape[place] - 1, -1, -1, dtype=np.int32)), axis=place)
