"""Comparisons, choices and look-ups without the operators for them: numbers that are 1 where a condition holds, else 0.

A difference is brought to 0 or beyond 1 by two products with a large number (the smallest difference of two floats
times its square is above 1), then cut off at 1. Integers need no such factor.
"""

from math import prod

import numpy as np

from coterie.compute.array import Array, bind
from coterie.compute.passes.legal_numbers import at_most_one
from coterie.compute.passes.site import Site
from coterie.compute.primitives import rules


def compared(site: Site) -> Array | None:
    """A comparison turned into numbers: numbers from the start."""
    dtype = site.node.attributes["dtype"]
    condition = site.producer(0, "equal", "greater")
    if condition is None or dtype == "bool":
        return None
    return rules.cast(_mask(condition), dtype)


def chosen(site: Site) -> Array | None:
    """where: the sum of both operands, each cut to nothing where it is not chosen."""
    dtype = site.node.output.type.dtype
    condition = site.producer(0, "equal", "greater")
    _, a, b = site.inputs
    if dtype == "bool":
        mask, a, b = (rules.cast(x, "float32") for x in (_mask(condition) if condition else site.inputs[0], a, b))
        return bind("greater", mask * a + (1.0 - mask) * b, rules.number(0.0, mask))
    if not site.node.output.type.is_float:
        mask = rules.cast(_mask(condition), dtype) if condition else rules.cast(site.inputs[0], dtype)
        return mask * a + (1 - mask) * b
    mask = rules.cast(_mask(condition) if condition else site.inputs[0], dtype)
    return _cut(a, mask) + _cut(b, 1.0 - mask)


def gathered(site: Site) -> Array | None:
    """gather: a product with the one-hot matrix of the indices. Exact, since all other products are 0."""
    x, indices = site.inputs
    if not x.type.is_float:
        return None
    axis: int = site.node.attributes["axis"]
    count, rest = x.shape[axis], x.shape[:axis] + x.shape[axis + 1 :]
    table = rules.transpose(x, (axis, *(i for i in range(x.ndim) if i != axis)))
    rows = bind("matmul", _one_hot(indices, count, x.type.dtype), rules.reshape(table, (count, prod(rest))))
    found = rules.reshape(rows, (*indices.shape, *rest))
    inner = indices.ndim
    order = (*range(inner, inner + axis), *range(inner), *range(inner + axis, found.ndim))
    return found if order == tuple(range(found.ndim)) else rules.transpose(found, order)


def scattered(site: Site) -> Array | None:
    """scatter_add: a product with the transposed one-hot matrix of the indices, and a sum."""
    x, indices, updates = site.inputs
    if not x.type.is_float:
        return None
    one_hot = _one_hot(indices, x.shape[0], x.type.dtype)
    rows = rules.reshape(updates, (indices.size, prod(x.shape[1:])))
    return x + rules.reshape(bind("matmul", rules.swap_last(one_hot), rows), x.shape)


def running_sum(site: Site) -> Array | None:
    """cumsum: a product with a triangle of ones."""
    (x,) = site.inputs
    if not x.type.is_float:
        return None
    axis: int = site.node.attributes["axis"]
    ones = np.tri(x.shape[axis], dtype=x.type.dtype)
    triangle = Array(ones if site.node.attributes["reverse"] else np.ascontiguousarray(ones.T))
    order = (*(i for i in range(x.ndim) if i != axis), axis)
    moved = rules.transpose(x, order)
    rows = rules.reshape(moved, (x.size // x.shape[axis], x.shape[axis]))
    total = rules.reshape(bind("matmul", rows, triangle), moved.shape)
    return rules.transpose(total, tuple(order.index(i) for i in range(x.ndim)))


def smaller_of(site: Site) -> Array | None:
    """minimum: the negative of the greater of the negatives. Exact."""
    a, b = site.inputs
    if a.type.dtype == "uint8":
        return None
    return -bind("maximum", -a, -b)


def one_for_all(site: Site) -> Array | None:
    """broadcast_to: a product with ones. Exact."""
    (x,) = site.inputs
    if x.type.dtype == "bool":
        return None
    return x * Array(np.ones(site.node.attributes["shape"], x.type.dtype))


def _one_hot(indices: Array, count: int, dtype: str) -> Array:
    """[indices, count]: 1 at each index, which may count from the end."""
    ids = rules.reshape(indices, (indices.size, 1))
    ids = ids + count * rules.greater_mask(rules.number(0, ids), ids, ids.type.dtype)
    return rules.equal_mask(ids, Array(np.arange(count, dtype=ids.type.dtype)), dtype)


def _mask(condition: Site) -> Array:
    a, b = condition.inputs
    if condition.node.primitive == "equal":
        return 1.0 - at_most_one(_distance(a, b))
    zero = condition.constant(1)
    if zero is not None and not zero.any() and condition.producer(0, "relu"):
        return at_most_one(a)  # already at least 0
    return at_most_one(bind("relu", _signed(a, b)))


def _difference(a: Array, b: Array) -> Array:
    """a - b in floats. Integers are subtracted first, so that none is rounded."""
    if a.type.is_float:
        return a - b
    if a.type.dtype in ("bool", "uint8"):
        return rules.cast(a, "float32") - rules.cast(b, "float32")
    return rules.cast(a - b, "float32")


def _signed(a: Array, b: Array) -> Array:
    """A float of the sign of a - b."""
    difference = _difference(a, b)
    if a.type.dtype not in ("int32", "int64"):
        return difference
    # A difference beyond the range of integers comes back at the other end; twice the rounded one outweighs it then.
    return difference + 2.0 * (rules.cast(a, "float32") - rules.cast(b, "float32"))


def _distance(a: Array, b: Array) -> Array:
    difference = _difference(a, b)
    return bind("maximum", difference, -difference)


def _cut(x: Array, mask: Array) -> Array:
    """x where the mask is 1, 0 where it is 0, also for an infinite x."""
    bound = mask * rules.number(float(np.finfo(x.type.dtype).max), x)
    return bind("minimum", bind("maximum", x, -bound), bound)
