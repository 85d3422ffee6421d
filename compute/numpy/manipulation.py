"""Shapes and order of elements."""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from operator import index

import numpy as np

from coterie.compute.array_type import Array, ArrayLike, as_array, bind, promote, refuse
from coterie.compute.literals import fits
from coterie.compute.primitives import rules
from coterie.compute.primitives.indexing import check_known
from coterie.compute.source import operation
from coterie.errors import DTypeError, ShapeError


def axis_of(name: str, array: Array, axis: int, rank: int | None = None) -> int:
    """The axis counted from the front. Raises ShapeError when it does not exist."""
    count = array.ndim if rank is None else rank
    try:
        place = index(axis)
    except TypeError:
        fix = "Axes are counted from 0."
        refuse(DTypeError, name, (array,), f"the axis {axis!r} is not a whole number.", fix)
    if not -count <= place < count:
        refuse(ShapeError, name, (array,), f"axis {place} does not exist.", f"The array has {count} axes.")
    return place % count


@operation
def reshape(x: ArrayLike, shape: int | Sequence[int], *, copy: bool | None = None) -> Array:
    """The same elements in row-major order in another shape; one size may be -1. Arrays are never written to, so
    nothing hangs on ``copy``.
    """
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


@operation
def permute_dims(x: ArrayLike, axes: Sequence[int]) -> Array:
    """The array with its axes in this order."""
    array = as_array(x)
    return bind("transpose", array, permutation=tuple(axis_of("permute_dims", array, axis) for axis in axes))


@operation
def matrix_transpose(x: ArrayLike) -> Array:
    """The array with its last two axes exchanged."""
    array = as_array(x)
    if array.ndim < 2:
        refuse(
            ShapeError, "matrix_transpose", (array,), "a transposition needs two axes.", "Reshape to a matrix first."
        )
    return rules.swap_last(array)


@operation
def moveaxis(x: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """Move one axis, or several, to other places."""
    array = as_array(x)
    sources, places = (
        [axis_of("moveaxis", array, a) for a in ((axes,) if isinstance(axes, int) else axes)]
        for axes in (source, destination)
    )
    if len(sources) != len(places) or len(set(sources)) != len(sources) or len(set(places)) != len(places):
        reason = f"the axes {sources} do not all have a place of their own in {places}."
        refuse(ShapeError, "moveaxis", (array,), reason, "Name as many different places as different axes.")
    order = [axis for axis in range(array.ndim) if axis not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return permute_dims(array, order)


@operation
def expand_dims(x: ArrayLike, axis: int = 0) -> Array:
    """A new axis of size 1 at this place."""
    array = as_array(x)
    place = axis_of("expand_dims", array, axis, array.ndim + 1)
    return bind("reshape", array, shape=(*array.shape[:place], 1, *array.shape[place:]))


@operation
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


@operation
def broadcast_to(x: ArrayLike, shape: Sequence[int]) -> Array:
    """The array repeated along axes of size 1 and new leading axes."""
    return rules.broadcast_to(as_array(x), tuple(shape))


@operation
def concat(arrays: Sequence[ArrayLike], *, axis: int | None = 0) -> Array:
    """The arrays one after another along an axis (None: all flattened)."""
    operands = promote("concat", *arrays)
    if axis is None:
        operands, axis = tuple(reshape(array, -1) for array in operands), 0
    place = axis_of("concat", operands[0], axis)
    return operands[0] if len(operands) == 1 else bind("concat", *operands, axis=place)


@operation
def stack(arrays: Sequence[ArrayLike], *, axis: int = 0) -> Array:
    """The arrays beside one another along a new axis."""
    operands = promote("stack", *arrays)
    place = axis_of("stack", operands[0], axis, operands[0].ndim + 1)
    return concat([expand_dims(array, place) for array in operands], axis=place)


def slice_along(x: Array, axis: int, start: int, stop: int) -> Array:
    """The part from start up to but without stop of an axis counted from the front."""
    starts, stops = [0] * x.ndim, list(x.shape)
    starts[axis], stops[axis] = start, stop
    return bind("slice", x, starts=tuple(starts), stops=tuple(stops))


@operation
def split(x: ArrayLike, sizes: int | Sequence[int], *, axis: int = 0) -> list[Array]:
    """The array cut along an axis into parts of these sizes, which must add up, or into so many equal parts."""
    array = as_array(x)
    place = axis_of("split", array, axis)
    count = array.shape[place]
    if isinstance(sizes, int):
        if sizes < 1 or count % sizes:
            reason = f"{count} elements do not make {sizes} equal parts."
            refuse(ShapeError, "split", (array,), reason, "Give the sizes of the parts as a list.")
        sizes = [count // sizes] * sizes
    if sum(sizes) != count:
        refuse(
            ShapeError,
            "split",
            (array,),
            f"the sizes {list(sizes)} add up to {sum(sizes)}, not {count}.",
            "Cover the whole axis.",
        )
    stops = list(accumulate(sizes))
    return [slice_along(array, place, stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]


@operation
def unstack(x: ArrayLike, *, axis: int = 0) -> tuple[Array, ...]:
    """The slices along an axis, without it."""
    array = as_array(x)
    place = axis_of("unstack", array, axis)
    return tuple(squeeze(slice_along(array, place, i, i + 1), place) for i in range(array.shape[place]))


@operation
def pad(x: ArrayLike, widths: Sequence[tuple[int, int]], *, value: float = 0.0) -> Array:
    """The array with (before, after) more elements of one value on each axis."""
    array, filling = as_array(x), float(value)
    whole = array.dtype.kind in "iu"
    if whole and not (filling.is_integer() and fits(int(filling), array.type.dtype)):
        fix = "Pad integers with an integer."
        refuse(DTypeError, "pad", (array,), f"the value {value!r} does not fit dtype {array.type.dtype}.", fix)
    before, after = tuple(a for a, _ in widths), tuple(b for _, b in widths)
    return bind("pad", array, before=before, after=after, value=filling)


@operation
def take(x: ArrayLike, indices: ArrayLike, *, axis: int = 0) -> Array:
    """The slices at these integer positions along an axis; negative ones count from its end. A position outside is an
    error, when it is traced if it is known, else at run time; where a graph needs the gradient alone and not the
    slices, it gets none instead.
    """
    array, places = as_array(x), as_array(indices)
    place = axis_of("take", array, axis)
    check_known("take", array, places, place)
    return bind("gather", array, places, axis=place)


@operation
def flip(x: ArrayLike, *, axis: int | Sequence[int] | None = None) -> Array:
    """The array in reverse order along an axis, several, or all."""
    array = as_array(x)
    axes = range(array.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    places = [axis_of("flip", array, a) for a in axes]
    if len(set(places)) < len(places):
        refuse(ShapeError, "flip", (array,), f"the axes {places} are not different.", "Name every axis once.")
    for place in places:
        backwards = np.arange(array.shape[place] - 1, -1, -1, dtype=np.int32)
        array = take(array, Array(backwards), axis=place)
    return array


@operation
def roll(x: ArrayLike, shift: int | Sequence[int], *, axis: int | Sequence[int] | None = None) -> Array:
    """The array moved round by ``shift`` elements along an axis, or along several; None: along all of them as one."""
    array = as_array(x)
    if axis is None:
        return reshape(roll(reshape(array, -1), shift, axis=0), array.shape)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    shifts = (shift,) * len(axes) if isinstance(shift, int) else tuple(shift)
    if len(shifts) != len(axes):
        reason = f"{len(shifts)} shifts for {len(axes)} axes."
        refuse(ShapeError, "roll", (array,), reason, "Give one shift for each axis, or one for all.")
    for places, a in zip(shifts, axes, strict=True):
        place = axis_of("roll", array, a)
        size = array.shape[place]
        if size and places % size:
            cut = size - places % size
            array = concat([slice_along(array, place, cut, size), slice_along(array, place, 0, cut)], axis=place)
    return array


@operation
def repeat(x: ArrayLike, repeats: int | ArrayLike, *, axis: int | None = None) -> Array:
    """Every element so many times in a row along an axis (None: of all elements as one axis). An array of counts must
    be known when the function is traced, because the shape of the result depends on it.
    """
    array = as_array(x)
    if axis is None:
        array, axis = reshape(array, -1), 0
    place = axis_of("repeat", array, axis)
    size = array.shape[place]
    if isinstance(repeats, int) or as_array(repeats).size == 1:
        count = repeats if isinstance(repeats, int) else int(as_array(repeats).item())
        front, back = array.shape[: place + 1], array.shape[place + 1 :]
        grown = rules.broadcast_to(reshape(array, (*front, 1, *back)), (*front, count, *back))
        return reshape(grown, (*front[:-1], size * count, *back))
    counts = as_array(repeats).numpy()
    if counts.shape != (size,):
        reason = f"{list(counts.shape)} counts for {size} elements."
        refuse(ShapeError, "repeat", (array,), reason, "Give one count for each element, or one for all.")
    return take(array, Array(np.repeat(np.arange(size, dtype=np.int32), counts)), axis=place)


@operation
def tile(x: ArrayLike, repetitions: int | Sequence[int]) -> Array:
    """The array so many times beside itself along each axis; axes are matched from the right."""
    array = as_array(x)
    counts = (repetitions,) if isinstance(repetitions, int) else tuple(repetitions)
    rank = max(len(counts), array.ndim)
    counts = (1,) * (rank - len(counts)) + counts
    shape = (1,) * (rank - array.ndim) + array.shape
    apart = tuple(n for size in shape for n in (1, size))
    grown = tuple(n for pair in zip(counts, shape, strict=True) for n in pair)
    final = tuple(count * size for count, size in zip(counts, shape, strict=True))
    return reshape(rules.broadcast_to(reshape(array, apart), grown), final)


@operation
def swapaxes(x: ArrayLike, first: int, second: int) -> Array:
    """The array with two axes exchanged."""
    array = as_array(x)
    order = list(range(array.ndim))
    a, b = axis_of("swapaxes", array, first), axis_of("swapaxes", array, second)
    order[a], order[b] = b, a
    return permute_dims(array, order)


@operation
def broadcast_arrays(*arrays: ArrayLike) -> list[Array]:
    """The arrays, all in their common shape."""
    given = [as_array(x) for x in arrays]
    try:
        shape = np.broadcast_shapes(*(array.shape for array in given))
    except ValueError:
        reason, fix = "the shapes do not broadcast.", "Axes are matched from the right and must be equal or 1."
        refuse(ShapeError, "broadcast_arrays", given, reason, fix)
    return [rules.broadcast_to(array, shape) for array in given]


@operation
def meshgrid(*arrays: ArrayLike, indexing: str = "xy") -> list[Array]:
    """The coordinates of a grid over these vectors, each in the shape of the grid. "xy": the second vector runs along
    axis 0; "ij": the first does.
    """
    given = [as_array(x) for x in arrays]
    if any(array.ndim > 1 for array in given) or indexing not in ("xy", "ij"):
        refuse(ShapeError, "meshgrid", given, "it needs vectors, and an indexing xy or ij.", "Flatten the arrays.")
    order = list(range(len(given)))
    if indexing == "xy" and len(given) > 1:
        order[0], order[1] = 1, 0
    sizes = [array.size for array in given]
    shape = tuple(sizes[order.index(i)] for i in range(len(given)))
    return [
        rules.broadcast_to(reshape(array, tuple(n if i == place else 1 for i, n in enumerate(shape))), shape)
        for array, place in zip(given, order, strict=True)
    ]
