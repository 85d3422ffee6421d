"""Operators moved past one another so that each works on fewer elements.

Three moves: a crop goes before what is computed element by element (or row by row), so that what it cuts off is never
computed; pooling goes before functions that keep order; sums and averages go before the constants that scale and shift
their terms. Every move lowers the count of floating point operations and gives the same numbers, the last one up to
rounding.
"""

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.passes.padding import sliced
from coterie.compute.passes.rewrite import View, rewrite
from coterie.compute.table import ELEMENTWISE, having

Rule = Callable[[Node, View], Value | None]
_MONOTONE = having(lambda facts: facts.monotone)
Shape = tuple[int, ...]


def reorder_operators(graph: Graph) -> Graph:
    """One sweep of all moves."""
    return rewrite(graph, _rule)


def _rule(node: Node, view: View) -> Value | None:
    rule = _RULES.get(node.primitive)
    return None if rule is None or view.uses(node.inputs[0]) != 1 else rule(node, view)


def _crop(node: Node, view: View) -> Value | None:
    """A slice of a result: the same computed of slices, when nothing else reads the whole."""
    if node.output.type.size == node.inputs[0].type.size:
        return None
    if (found := sliced(node, view)) is not None:
        return found
    starts, stops = node.attributes["starts"], node.attributes["stops"]
    if made := view.producer(node.inputs[0], *ELEMENTWISE):
        parts = [_part(view, value, made.output.type.shape, starts, stops) for value in made.inputs]
        return view.emit(made.primitive, *parts, **made.attributes)
    if made := view.producer(node.inputs[0], *_CROPPED):
        return _CROPPED[made.primitive](made, view, starts, stops)
    return None


def _part(view: View, value: Value, shape: Shape, starts: Shape, stops: Shape) -> Value:
    """The slice of an operand that broadcasts to the shape that is sliced."""
    missing = len(shape) - value.type.rank
    low = tuple(0 if n == 1 else starts[missing + axis] for axis, n in enumerate(value.type.shape))
    high = tuple(1 if n == 1 else stops[missing + axis] for axis, n in enumerate(value.type.shape))
    return _slice(view, value, low, high)


def _slice(view: View, value: Value, starts: Shape, stops: Shape) -> Value:
    if (starts, stops) == ((0,) * value.type.rank, value.type.shape):
        return value
    return view.emit("slice", value, starts=starts, stops=stops)


def _crop_transposed(made: Node, view: View, starts: Shape, stops: Shape) -> Value:
    permutation: Shape = made.attributes["permutation"]
    low, high = ([0] * len(permutation) for _ in range(2))
    for index, axis in enumerate(permutation):
        low[axis], high[axis] = starts[index], stops[index]
    return view.emit("transpose", _slice(view, made.inputs[0], tuple(low), tuple(high)), permutation=permutation)


def _crop_reshaped(made: Node, view: View, starts: Shape, stops: Shape) -> Value | None:
    """Axes at the front that a reshape leaves alone can be cut before it."""
    before, after = made.inputs[0].type.shape, made.output.type.shape
    kept = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    if any((starts[axis], stops[axis]) != (0, after[axis]) for axis in range(kept, len(after))):
        return _crop_stacked(made, view, starts, stops)
    low = (*starts[:kept], *(0 for _ in before[kept:]))
    part = _slice(view, made.inputs[0], low, (*stops[:kept], *before[kept:]))
    return view.emit("reshape", part, shape=(*(b - a for a, b in zip(starts, stops, strict=True)),))


def _crop_stacked(made: Node, view: View, starts: Shape, stops: Shape) -> Value | None:
    """x[B, T, K] as [B T, K], times a matrix, as [B, T, N]: the last place of every sequence, say, needs no others."""
    product = view.producer(made.inputs[0], "matmul", "gemm")
    flat = view.producer(product.inputs[0], "reshape") if product else None
    if product is None or flat is None or view.uses(made.inputs[0]) != 1 or product.attributes.get("transpose_a"):
        return None
    x, shape = flat.inputs[0], made.output.type.shape
    whole = starts[-1] == 0 and stops[-1] == shape[-1] == product.output.type.shape[-1]
    if product.output.type.rank != 2 or not whole or x.type.shape != (*shape[:-1], product.inputs[0].type.shape[1]):
        return None
    if any(value.type.rank == 2 and value.type.shape[0] != 1 for value in product.inputs[2:]):
        return None
    part = _slice(view, x, (*starts[:-1], 0), (*stops[:-1], x.type.shape[-1]))
    sizes = tuple(stop - start for start, stop in zip(starts, stops, strict=True))
    rows = view.emit("reshape", part, shape=(prod(sizes[:-1]), x.type.shape[-1]))
    cut = view.emit(product.primitive, rows, *product.inputs[1:], **product.attributes)
    return view.emit("reshape", cut, shape=sizes)


def _crop_product(made: Node, view: View, starts: Shape, stops: Shape) -> Value:
    """Rows and columns of a product: those of its operands."""
    (a, b), shape = made.inputs, made.output.type.shape
    left = _part(view, a, (*shape[:-1], a.type.shape[-1]), (*starts[:-1], 0), (*stops[:-1], a.type.shape[-1]))
    inner = b.type.shape[-2]
    right = _part(
        view,
        b,
        (*shape[:-2], inner, shape[-1]),
        (*starts[:-2], 0, starts[-1]),
        (*stops[:-2], inner, stops[-1]),
    )
    return view.emit("matmul", left, right)


def _crop_gemm(made: Node, view: View, starts: Shape, stops: Shape) -> Value:
    flips = made.attributes["transpose_a"], made.attributes["transpose_b"]
    operands: list[Value] = []
    for index, (value, flipped) in enumerate(zip(made.inputs[:2], flips, strict=True)):
        axis = index != flipped  # the axis of the operand that becomes axis `index` of the result
        low, high = [0, 0], list(value.type.shape)
        low[axis], high[axis] = starts[index], stops[index]
        operands.append(_slice(view, value, tuple(low), tuple(high)))
    operands += [_part(view, value, made.output.type.shape, starts, stops) for value in made.inputs[2:]]
    return view.emit("gemm", *operands, **made.attributes)


def _crop_softmax(made: Node, view: View, starts: Shape, stops: Shape) -> Value | None:
    axis, x = made.attributes["axis"], made.inputs[0]
    if (starts[axis], stops[axis]) != (0, x.type.shape[axis]):
        return None
    return view.emit("softmax", _slice(view, x, starts, stops), axis=axis)


_CROPPED: Mapping[str, Callable[[Node, View, Shape, Shape], Value | None]] = {
    "transpose": _crop_transposed,
    "reshape": _crop_reshaped,
    "matmul": _crop_product,
    "gemm": _crop_gemm,
    "softmax": _crop_softmax,
}


def _greatest(node: Node, view: View) -> Value | None:
    """The greatest f(x) is f of the greatest x, where f keeps order."""
    made = view.producer(node.inputs[0], *_MONOTONE)
    if made is None or node.output.type.size == node.inputs[0].type.size:
        return None
    return view.emit(made.primitive, view.emit(node.primitive, made.inputs[0], **node.attributes))


def _averaged(node: Node, view: View) -> Value | None:
    """The mean of x * a is the mean of x, times a, and that of x + a is the mean of x, plus a, where a is constant and
    the same all over the window.
    """
    if node.output.type.size == node.inputs[0].type.size:
        return None
    for made, x, constant in _with_constants(node, view, "multiply", "add"):
        if all(n == 1 for n in constant.type.shape[-2:]):
            return view.emit(made.primitive, view.emit("average_pool", x, **node.attributes), constant)
    return None


def _summed(node: Node, view: View) -> Value | None:
    """The sum of x * a is the sum of x, times a, where a is constant and the same along the axes that are summed."""
    axes: Shape = node.attributes["axes"]
    kept: bool = node.attributes["keepdims"]
    if node.output.type.size == node.inputs[0].type.size:
        return None
    for _, x, constant in _with_constants(node, view, "multiply"):
        missing = x.type.rank - constant.type.rank
        if any(axis >= missing and constant.type.shape[axis - missing] != 1 for axis in axes):
            continue
        if not kept:
            full = (1,) * missing + constant.type.shape
            constant = view.emit("reshape", constant, shape=tuple(n for i, n in enumerate(full) if i not in axes))
        return view.emit("multiply", view.emit("sum", x, **node.attributes), constant)
    return None


def _with_constants(node: Node, view: View, *primitives: str) -> "list[tuple[Node, Value, Value]]":
    """The node that makes the operand, with its two operands in the order: a full tensor, a finite constant."""
    made = view.producer(node.inputs[0], *primitives)
    found: list[tuple[Node, Value, Value]] = []
    for x, other in (made.inputs, made.inputs[::-1]) if made else ():
        constant = view.constant(other)
        if made and constant is not None and x.type == made.output.type and np.isfinite(constant).all():
            found.append((made, x, other))
    return found


_RULES: Mapping[str, Rule] = {
    "slice": _crop,
    "max_pool": _greatest,
    "max": _greatest,
    "average_pool": _averaged,
    "sum": _summed,
}
