"""Elements at positions that are data: picked, put in, and in order."""

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.numpy.indexing import in_row_major_order
from coterie.compute.onnx.importer.operation import Operation, Rule, is_known


def _gather(node: Operation) -> Array:
    x, places = node[0], node[1]
    axis = int(node.option("axis", 0))
    size = x.shape[axis]
    if is_known(places):
        wrapped = Array(np.where(places.numpy() < 0, places.numpy() + size, places.numpy()))
    else:
        wrapped = cnp.where(places < 0, places + size, places)
    return cnp.take(x, wrapped, axis=axis)


def _gather_elements(node: Operation) -> Array:
    x, places, axis = node[0], node[1], int(node.option("axis", 0))
    if x.ndim == places.ndim:  # fewer places on another axis: the first elements there
        x = x[tuple(slice(None) if i == axis % x.ndim else slice(0, n) for i, n in enumerate(places.shape))]
    return cnp.take_along_axis(x, places, axis=axis)


def _gather_nd(node: Operation) -> Array:
    x, places, fixed = node[0], node[1], int(node.option("batch_dims", 0))
    count = places.shape[-1]
    front = _counted(places.shape[:-1])[:fixed]
    picked = [places[..., index] for index in range(count)]
    found = x[(*front, *picked)]
    return cnp.reshape(found, (*places.shape[:-1], *x.shape[fixed + count :]))


def _counted(shape: tuple[int, ...]) -> list[Array]:
    """For each axis, the coordinates on it of all elements of such an array."""
    return [Array(np.broadcast_to(grid, shape).astype(np.int64)) for grid in np.indices(shape, sparse=True)]


def _scatter_elements(node: Operation) -> Array:
    x, places, updates, axis = node[0], node[1], node[2], int(node.option("axis", 0))
    if places.ndim != x.ndim or not -x.ndim <= axis < x.ndim or updates.shape != places.shape:
        node.refuse(f"positions {list(places.shape)} do not fit {list(x.shape)}", "The file is damaged.")
    coordinates = _counted(places.shape)
    coordinates[axis % x.ndim] = places
    return _put(node, x, coordinates, updates)


def _scatter_nd(node: Operation) -> Array:
    places = node[1]
    return _put(node, node[0], [places[..., index] for index in range(places.shape[-1])], node[2])


def _put(node: Operation, x: Array, coordinates: list[Array], updates: Array) -> Array:
    """x with slices at coordinates of its first axes replaced by the updates, or joined with them by ``reduction``."""
    how, count = node.option("reduction", "none"), len(coordinates)
    if how not in ("none", "add", *_EXTREMES):
        node.refuse(
            f"it joins elements by {how!r}", 'Only the reductions "none", "add", "max" and "min" are translated.'
        )
    rest = x.shape[count:]
    places = cnp.reshape(in_row_major_order(coordinates, x.shape[:count]), (-1,))
    table = cnp.reshape(x, (prod(x.shape[:count]), *rest))
    rows = cnp.reshape(updates, (places.size, *rest))
    if how == "add":
        return cnp.reshape(ops.scatter_add(table, places, rows), x.shape)
    if how in _EXTREMES:
        return cnp.reshape(_extreme(node, how, table, places, rows), x.shape)
    if is_known(places) and np.unique(places.numpy()).size < places.size:
        node.refuse("it writes twice to one position", 'Export with the reduction "add", or without repeats.')
    # Sums of one update each; elsewhere what was there.
    summed = "int32" if rows.dtype.kind == "b" else rows.dtype
    zeros, marks = (
        cnp.zeros(shape, dtype=dtype) for shape, dtype in ((table.shape, summed), (table.shape[:1], "int32"))
    )
    put = cnp.astype(ops.scatter_add(zeros, places, cnp.astype(rows, summed)), x.dtype)
    touched = ops.scatter_add(marks, places, cnp.ones(places.shape, dtype="int32")) > 0
    return cnp.reshape(cnp.where(cnp.reshape(touched, (-1, *(1,) * len(rest))), put, table), x.shape)


_EXTREMES: Mapping[str, Callable[[Array, Array], Array]] = {"max": cnp.maximum, "min": cnp.minimum}


def _extreme(node: Operation, how: str, table: Array, places: Array, rows: Array) -> Array:
    """The table [S, ...], each element joined with the greatest or the least update of its place; in O(n log n). Of
    equal updates one has the gradient.
    """
    if rows.dtype.kind == "b":
        node.refuse(f"it joins truth values by {how!r}", "Cast them to integers before.")
    if not rows.size:
        return table
    width = rows.size // rows.shape[0]
    each = cnp.expand_dims(places, 1) * width + Array(np.arange(width, dtype=places.dtype.name))
    flat, values = cnp.reshape(each, (-1,)), cnp.reshape(rows, (-1,))
    # By place, and within it by value: the last of a place is its extreme.
    by_value = cnp.argsort(values, descending=how == "min")
    order = cnp.take(by_value, cnp.argsort(cnp.take(flat, by_value, axis=0)), axis=0)
    here, sorted_values = cnp.take(flat, order, axis=0), cnp.take(values, order, axis=0)
    ends = cnp.concat([here[1:] != here[:-1], cnp.ones((1,), dtype="bool")], axis=0)
    zeros = cnp.zeros((table.size,), dtype=values.dtype)
    put = ops.scatter_add(zeros, here, cnp.where(ends, sorted_values, cnp.zeros((), dtype=values.dtype)))
    touched = ops.scatter_add(cnp.zeros((table.size,), dtype="int32"), here, cnp.astype(ends, "int32")) > 0
    before = cnp.reshape(table, (-1,))
    return cnp.reshape(cnp.where(touched, _EXTREMES[how](before, put), before), table.shape)


def _top_k(node: Operation) -> tuple[Array, Array]:
    count = int(np.asarray(node.known(1)).item())
    values, places = ops.top_k(node[0], count, axis=node.option("axis", -1), largest=bool(node.option("largest", 1)))
    return values, cnp.astype(places, "int64")


def _one_hot(node: Operation) -> Array:
    depth = int(np.asarray(node.known(1)).item())
    if node.option("axis", -1) not in (-1, node[0].ndim):
        node.refuse("its classes are not on the last axis", "Export with axis=-1.")
    values = node[2]
    off, on = values[0], values[1]
    ids = cnp.astype(node[0], "int32") if node[0].type.is_float else node[0]
    chosen = ops.one_hot(cnp.where(ids < 0, ids + depth, ids), depth)
    return cnp.astype(chosen, values.dtype) * (on - off) + off


RULES: dict[str, Rule] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TopK": _top_k,
}
