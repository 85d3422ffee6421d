"""``x[...]`` with static integers, slices, None and Ellipsis, or with integer arrays for the first axes."""

from collections.abc import Sequence
from math import prod
from typing import Any, cast

import numpy as np

from coterie.compute.array_type import Array, as_array, bind, refuse
from coterie.compute.numpy.elementwise import greater_equal, less, logical_and, where
from coterie.compute.numpy.manipulation import reshape, take
from coterie.errors import TraceError


def get(x: Array, index: Any) -> Array:
    """The part of an array at an index. Raises TraceError for an index that is neither static nor made of integer
    arrays (of rank 0 beside slices), and for a mask.
    """
    items: list[Any] = list(cast("tuple[Any, ...]", index)) if isinstance(index, tuple) else [index]
    arrays = [cast("Array", item) for item in items if isinstance(item, (Array, np.ndarray))]
    if any(array.dtype.kind == "b" for array in arrays) or any(isinstance(item, (bool, np.bool)) for item in items):
        fix = "Use where(mask, x, 0), or top_k for a known number of elements."
        refuse(TraceError, "index", (x,), "a mask selects a number of elements that depends on data.", fix)
    if any(array.dtype.kind == "u" for array in arrays):
        fix = 'Convert the positions with astype(i, "int32").'
        refuse(TraceError, "index", (x, *map(as_array, arrays)), "positions are int32 or int64.", fix)
    if any(array.ndim for array in arrays) and all(array.dtype.kind == "i" for array in arrays):
        if all(isinstance(item, (int, Array, np.ndarray)) for item in items) and len(items) <= max(x.ndim, 1):
            return _at(x, [as_array(item) for item in items])
        if len(arrays) < len(items):
            fix = "Slice first, then take(x, indices, axis=...)."
            refuse(TraceError, "index", (x,), "arrays and slices in one index.", fix)
    used = sum(1 for item in items if item is not None and item is not Ellipsis)
    gap = [slice(None)] * (x.ndim - used)
    if any(item is Ellipsis for item in items):
        at = next(i for i, item in enumerate(items) if item is Ellipsis)
        items[at : at + 1] = gap
    else:
        items += gap
    if used > x.ndim:
        refuse(TraceError, "index", (x,), f"{used} indices for {x.ndim} axes.", "Use fewer indices.")
    # A traced number is taken along its axis of what the rest of the index leaves.
    open_ones = [at for at, item in enumerate(items) if _is_open(item)]
    part = _apply(x, [slice(None) if at in open_ones else item for at, item in enumerate(items)])
    for at in reversed(open_ones):
        place = sum(1 for item in items[:at] if item is None or isinstance(item, slice) or _is_open(item))
        part = take(part, items[at], axis=place)
    return part


def _is_open(item: Any) -> bool:
    return isinstance(item, Array) and item.recorder is not None and not item.ndim and item.dtype.kind == "i"


def _at(x: Array, places: list[Array]) -> Array:
    """The slices at positions that count through the first axes in row-major order."""
    if len(places) == 1:
        return take(x, places[0], axis=0)
    sizes = x.shape[: len(places)]
    found = in_row_major_order(places, sizes)
    if len(places) == x.ndim:  # single elements: the gradient costs what it touches, not a one-hot matrix over all of x
        picked = bind("gather_along", reshape(x, (x.size,)), reshape(found, (found.size,)), axis=0)
        return reshape(picked, found.shape)
    return take(reshape(x, (prod(sizes), *x.shape[len(places) :])), found, axis=0)


def in_row_major_order(places: Sequence[Array], sizes: Sequence[int]) -> Array:
    """Coordinates on axes of these sizes, which may count from the end, as places in row-major order."""
    flat: Array | None = None
    for place, size in zip(places, sizes, strict=True):
        # An index outside its axis would reach into the next row: it is sent beyond all, where it is refused.
        inside = where(less(place, 0), place + size, place)
        inside = where(logical_and(greater_equal(inside, 0), less(inside, size)), inside, np.iinfo(np.int32).max)
        flat = inside if flat is None else _joined(flat, inside, size)
    return cast("Array", flat)


def _joined(front: Array, back: Array, size: int) -> Array:
    beyond = np.iinfo(np.int32).max
    inside = logical_and(less(front, beyond), less(back, beyond))
    return where(inside, where(inside, front, 0) * size + back, beyond)


def _apply(x: Array, items: list[Any]) -> Array:
    starts, stops, shape = [0] * x.ndim, list(x.shape), list[int]()
    stepped: list[tuple[int, Any]] = []
    axis = 0
    for item in items:
        if item is None:
            shape.append(1)
            continue
        if isinstance(item, slice):
            positions = range(*item.indices(x.shape[axis]))
            if positions.step == 1 or len(positions) == 0:
                starts[axis], stops[axis] = (
                    (positions.start, positions.start + len(positions)) if len(positions) else (0, 0)
                )
            else:
                stepped.append((axis, np.asarray(positions, dtype=np.int32)))
            shape.append(len(positions))
        else:
            starts[axis] = _position(x, axis, item)
            stops[axis] = starts[axis] + 1
        axis += 1
    for place, positions in stepped:
        x = take(x, Array(positions), axis=place)
        stops[place] = len(positions)
    part = (
        x
        if (starts, stops) == ([0] * x.ndim, list(x.shape))
        else bind("slice", x, starts=tuple(starts), stops=tuple(stops))
    )
    return part if tuple(shape) == part.shape else bind("reshape", part, shape=tuple(shape))


def _position(x: Array, axis: int, item: Any) -> int:
    try:
        position = int(item.__index__())
    except (AttributeError, TraceError):
        refuse(
            TraceError,
            "index",
            (x,),
            f"the index {item!r} is not static.",
            "Use take(x, indices, axis=...) for indices that are arrays.",
        )
    if not -x.shape[axis] <= position < x.shape[axis]:
        refuse(
            TraceError,
            "index",
            (x,),
            f"{position} is outside axis {axis} of size {x.shape[axis]}.",
            "Use a position inside.",
        )
    return position % x.shape[axis]
