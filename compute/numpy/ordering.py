"""Order along an axis. Positions are int32; values carry gradients, positions none. NaN has no defined place."""

import numpy as np

from coterie.compute.array_type import Array, ArrayLike, as_array, bind, promote, refuse
from coterie.compute.numpy import manipulation, reduction
from coterie.compute.numpy.elementwise import greater, greater_equal
from coterie.compute.numpy.manipulation import axis_of
from coterie.compute.primitives import rules
from coterie.compute.primitives.indexing import check_known
from coterie.compute.source import operation
from coterie.errors import DTypeError, ShapeError


@operation
def argsort(x: ArrayLike, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The positions that put the elements in order. Equal elements keep their order, whatever ``stable`` is."""
    array = as_array(x)
    place = axis_of("argsort", array, axis)
    if array.shape[place] == 0:
        return rules.zeros(type(array.type)("int32", array.shape))
    return bind("top_k", array, k=array.shape[place], axis=place, largest=bool(descending))


@operation
def sort(x: ArrayLike, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The elements in order. The gradient of each goes back to its place."""
    array = as_array(x)
    return take_along_axis(array, argsort(array, axis=axis, descending=descending), axis=axis)


@operation
def take_along_axis(x: ArrayLike, indices: ArrayLike, *, axis: int = -1) -> Array:
    """The element at each position along an axis; the other axes of both broadcast. Positions as for take."""
    array, places = as_array(x), as_array(indices)
    place = axis_of("take_along_axis", array, axis)
    if places.ndim != array.ndim:
        fix = "Give both the same number of axes; take(x, indices, axis) takes whole slices."
        refuse(ShapeError, "take_along_axis", (array, places), "the indices have another number of axes.", fix)
    check_known("take_along_axis", array, places, place)
    others = [(a, b) for i, (a, b) in enumerate(zip(array.shape, places.shape, strict=True)) if i != place]
    if any(a != b and 1 not in (a, b) for a, b in others):
        fix = f"All axes but {place} must be equal or 1."
        refuse(ShapeError, "take_along_axis", (array, places), f"they differ on another axis than {place}.", fix)
    common = np.broadcast_shapes(tuple(a for a, _ in others), tuple(b for _, b in others))

    def grown(operand: Array) -> Array:
        return rules.broadcast_to(operand, (*common[:place], operand.shape[place], *common[place:]))

    return bind("gather_along", grown(array), grown(places), axis=place)


@operation
def searchsorted(x1: ArrayLike, x2: ArrayLike, *, side: str = "left", sorter: ArrayLike | None = None) -> Array:
    """Where each of x2 would stand in the ordered vector x1: before equal elements ("left") or behind them ("right").
    Compares all pairs.
    """
    ordered, sought = promote("searchsorted", x1, x2)
    if ordered.ndim != 1 or side not in ("left", "right"):
        refuse(
            ShapeError, "searchsorted", (ordered, sought), "it needs a vector, and a side left or right.", "Flatten."
        )
    if ordered.type.dtype == "bool":
        refuse(DTypeError, "searchsorted", (ordered, sought), "bool has no order.", 'Use astype(x, "int32").')
    ordered = ordered if sorter is None else manipulation.take(ordered, sorter, axis=0)
    pairs = manipulation.expand_dims(sought, sought.ndim)
    below = greater(pairs, ordered) if side == "left" else greater_equal(pairs, ordered)
    return reduction.sum(below, axis=-1)
