"""``x[...]`` with static integers, slices, None and Ellipsis, or one integer array."""

from typing import Any, cast

import numpy as np

from coterie.compute.array import Array, bind, refuse
from coterie.compute.numpy.manipulation import take
from coterie.errors import TraceError


def get(x: Array, index: Any) -> Array:
    """The part of an array at an index. Raises TraceError for an index that is neither static nor one integer array."""
    if isinstance(index, (Array, np.ndarray)) and cast("Array", index).dtype.kind == "i":
        return take(x, cast("Array", index), axis=0)
    items: list[Any] = list(cast("tuple[Any, ...]", index)) if isinstance(index, tuple) else [index]
    used = sum(1 for item in items if item is not None and item is not Ellipsis)
    gap = [slice(None)] * (x.ndim - used)
    if any(item is Ellipsis for item in items):
        at = next(i for i, item in enumerate(items) if item is Ellipsis)
        items[at : at + 1] = gap
    else:
        items += gap
    if used > x.ndim:
        refuse(TraceError, "index", (x,), f"{used} indices for {x.ndim} axes.", "Use fewer indices.")
    return _apply(x, items)


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
