"""Layouts of images: transpositions moved down a chain until they meet others and cancel.

Coterie's graphs say NCHW. A file that says NHWC, as TensorFlow writes them, has a transposition before and behind every
convolution. Each is moved past what works in any order of axes, its constants turned with it; where one meets its
inverse both go, where it meets the flattening before a matrix product it goes into the product's weights. A chain ends
with at most one transposition at each end. Blocked layouts belong to ONNX Runtime and its providers.
"""

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.passes.inference.channels import addend_of, emit_product, weights_of
from coterie.compute.passes.rewrite import View, rewrite
from coterie.compute.table import ELEMENTWISE

Shape = tuple[int, ...]


def move_transpositions(graph: Graph) -> Graph:
    """One sweep. The number of transpositions never grows: one that others read stays where it is."""
    return rewrite(graph, _rule)


def _rule(node: Node, view: View) -> Value | None:
    if node.primitive in ELEMENTWISE:
        return _past_elementwise(node, view)
    rule = _RULES.get(node.primitive)
    return rule(node, view) if rule else None


def _transposed(view: View, value: Value) -> tuple[Value, Shape] | None:
    """The tensor before its transposition, which nothing else reads, and the order of axes. Matrices are left alone: a
    product takes and gives them transposed at no cost.
    """
    made = view.producer(value, "transpose")
    if made is None or view.uses(value) != 1 or value.type.rank == 2:
        return None
    return made.inputs[0], made.attributes["permutation"]


def _past_elementwise(node: Node, view: View) -> Value | None:
    shape = node.output.type.shape
    found = [_transposed(view, value) for value in node.inputs]
    orders = {there[1] for there in found if there is not None}
    if len(orders) != 1:
        return None
    (order,) = orders
    back = tuple(np.argsort(order).tolist())
    operands: list[Value] = []
    for value, there in zip(node.inputs, found, strict=True):
        constant = view.constant(value)
        if there is not None:
            if value.type.shape != shape:
                return None
            operands.append(there[0])
        elif value.type.size == 1:
            operands.append(value)
        elif constant is not None:
            full = constant.reshape((1,) * (len(shape) - constant.ndim) + constant.shape)
            operands.append(view.emit_constant(np.transpose(full, back)))
        else:
            return None
    return view.emit("transpose", view.emit(node.primitive, *operands, **node.attributes), permutation=order)


def _past_reduction(node: Node, view: View) -> Value | None:
    there = _transposed(view, node.inputs[0])
    if there is None:
        return None
    x, order = there
    over: Shape = node.attributes["axes"]
    axes, kept = tuple(sorted(order[axis] for axis in over)), node.attributes["keepdims"]
    reduced = view.emit(node.primitive, x, axes=axes, keepdims=kept)
    left = order if kept else _renumbered(tuple(axis for axis in order if axis not in axes))
    return view.emit("transpose", reduced, permutation=left)


def _renumbered(order: Shape) -> Shape:
    ranks = sorted(order)
    return tuple(ranks.index(axis) for axis in order)


def _past_softmax(node: Node, view: View) -> Value | None:
    there = _transposed(view, node.inputs[0])
    if there is None:
        return None
    x, order = there
    return view.emit("transpose", view.emit("softmax", x, axis=order[node.attributes["axis"]]), permutation=order)


def _past_window(node: Node, view: View) -> Value | None:
    """A slice or a padding: its numbers, axis by axis, in the order before."""
    there = _transposed(view, node.inputs[0])
    if there is None:
        return None
    x, order = there
    back = [order.index(axis) for axis in range(len(order))]
    by_axis = ("starts", "stops") if node.primitive == "slice" else ("before", "after")
    turned = {name: tuple(node.attributes[name][index] for index in back) for name in by_axis}
    return view.emit("transpose", view.emit(node.primitive, x, **{**node.attributes, **turned}), permutation=order)


def _past_concat(node: Node, view: View) -> Value | None:
    found = [_transposed(view, value) for value in node.inputs]
    orders = {there[1] for there in found if there is not None}
    if len(orders) != 1 or None in found:
        return None
    (order,) = orders
    parts = [there[0] for there in found if there is not None]
    return view.emit("transpose", view.emit("concat", *parts, axis=order[node.attributes["axis"]]), permutation=order)


def _into_weights(node: Node, view: View) -> Value | None:
    """flatten(transpose(x)) @ W: the rows of W in the order in which x lies."""
    flat = view.producer(node.inputs[0], "reshape")
    weights, bias = weights_of(node, view), addend_of(node, view)
    if flat is None or weights is None or bias is None or view.uses(node.inputs[0]) != 1:
        return None
    there = _transposed(view, flat.inputs[0])
    if there is None:
        return None
    x, order = there
    shape = flat.inputs[0].type.shape
    if order[0] != 0 or node.inputs[0].type.shape != (shape[0], prod(shape[1:])):
        return None
    flipped = bool(node.attributes.get("transpose_b"))
    rows = (weights.T if flipped else weights).reshape(*shape[1:], -1)
    back = tuple(np.argsort([axis - 1 for axis in order[1:]]).tolist())
    turned = np.transpose(rows, (*back, len(back))).reshape(-1, rows.shape[-1])
    plain = view.emit("reshape", x, shape=node.inputs[0].type.shape)
    return emit_product(view, node, plain, turned.T if flipped else turned, bias)


_RULES: Mapping[str, Callable[[Node, View], Value | None]] = {
    "sum": _past_reduction,
    "max": _past_reduction,
    "softmax": _past_softmax,
    "slice": _past_window,
    "pad": _past_window,
    "concat": _past_concat,
    "matmul": _into_weights,
    "gemm": _into_weights,
}
