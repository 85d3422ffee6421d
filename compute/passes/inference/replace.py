"""Operators replaced by cheaper ones of the same meaning, which only pays once weights are numbers.

BatchNorm in the four numbers of its definition becomes one scale and one shift for each channel; differences and
quotients with constants become sums and products, which melt into their neighbours; two products with constant matrices
become one where that takes fewer operations. Results change by rounding alone.
"""

from collections.abc import Callable, Mapping

import numpy as np

from coterie.compute.ir import Graph, NDArray, Node, Value
from coterie.compute.passes.inference.channels import addend_of, emit_product, weights_of
from coterie.compute.passes.rewrite import View, rewrite
from coterie.compute.table import having

Rule = Callable[[Node, View], Value | None]
_NEVER_NEGATIVE = having(lambda facts: facts.nonnegative)


def replace_operators(graph: Graph) -> Graph:
    """One sweep of all replacements."""
    return rewrite(graph, _rule)


def _rule(node: Node, view: View) -> Value | None:
    rule = _RULES.get(node.primitive)
    if rule is None or not node.output.type.is_float:
        return None
    found = rule(node, view)
    return found if found is not None and found.type == node.output.type else None


def _added(node: Node, view: View) -> Value | None:
    """(x + a) + b = x + (a + b)."""
    for value, other in (node.inputs, node.inputs[::-1]):
        constant, inner = view.constant(other), view.producer(value, "add")
        if constant is None or inner is None or view.uses(value) != 1:
            continue
        for x, first in (inner.inputs, inner.inputs[::-1]):
            if (held := view.constant(first)) is not None and view.constant(x) is None:
                total = _joined(held, constant, np.add)
                return None if total is None else view.emit("add", x, view.emit_constant(total))
    return None


def _multiplied(node: Node, view: View) -> Value | None:
    """(x * a) * b = x * (a * b), and (x + a) * b = x * b + a * b: a scale stands before the shift."""
    for value, other in (node.inputs, node.inputs[::-1]):
        constant, inner = view.constant(other), view.producer(value, "multiply", "add")
        if constant is None or inner is None or view.uses(value) != 1 or view.constant(value) is not None:
            continue
        for x, first in (inner.inputs, inner.inputs[::-1]):
            held = view.constant(first)
            if held is None or view.constant(x) is not None or x.type.shape != inner.output.type.shape:
                continue
            product = _joined(held, constant, np.multiply)
            if product is None:
                return None
            if inner.primitive == "multiply":
                return view.emit("multiply", x, view.emit_constant(product))
            if value.type.shape == node.output.type.shape:
                return view.emit("add", view.emit("multiply", x, other), view.emit_constant(product))
    return None


def _subtracted(node: Node, view: View) -> Value | None:
    """x - a = x + (-a), to the bit."""
    constant = view.constant(node.inputs[1])
    return None if constant is None else view.emit("add", node.inputs[0], view.emit_constant(-constant))


def _divided(node: Node, view: View) -> Value | None:
    """x / a = x * (1 / a), where the reciprocal is a number of full precision."""
    constant = view.constant(node.inputs[1])
    if constant is None or not constant.all():
        return None
    with np.errstate(all="ignore"):
        inverse = np.reciprocal(constant)
    if not np.isfinite(inverse).all() or (np.abs(inverse) < np.finfo(inverse.dtype).smallest_normal).any():
        return None
    return view.emit("multiply", node.inputs[0], view.emit_constant(inverse))


def _power(node: Node, view: View) -> Value | None:
    """x to the power 1, 2 or 1/2."""
    x, exponent = node.inputs[0], view.constant(node.inputs[1])
    if exponent is None or exponent.size != 1:
        return None
    match float(exponent.reshape(())):
        case 1.0:
            return x
        case 2.0:
            return view.emit("multiply", x, x)
        case 0.5:
            return view.emit("sqrt", x)
        case _:
            return None


def _maximum(node: Node, view: View) -> Value | None:
    """max(x, 0) = relu x."""
    for x, other in (node.inputs, node.inputs[::-1]):
        constant = view.constant(other)
        if constant is not None and constant.size == 1 and not constant.any():
            return view.emit("relu", x) if x.type == node.output.type else None
    return None


def _relu(node: Node, view: View) -> Value | None:
    """relu of what is never below 0."""
    made = view.producer(node.inputs[0], *_NEVER_NEGATIVE)
    return None if made is None else node.inputs[0]


def _product(node: Node, view: View) -> Value | None:
    """(x A + a) B + b = x (A B) + (a B + b), where that takes fewer operations: two linear layers with nothing between,
    as factors of low rank are not.
    """
    inner = view.producer(node.inputs[0], "matmul", "gemm")
    if inner is None or view.uses(node.inputs[0]) != 1:
        return None
    first, second = weights_of(inner, view), weights_of(node, view)
    a, b = addend_of(inner, view), addend_of(node, view)
    if first is None or second is None or a is None or b is None:
        return None
    first, second = (w.T if made.attributes.get("transpose_b") else w for w, made in ((first, inner), (second, node)))
    if first.size + second.size <= first.shape[0] * second.shape[1]:
        return None
    if (a.any() or b.any()) and node.output.type.rank > 2:
        return None
    wide = first.astype(np.float64), second.astype(np.float64)
    plain = Node("matmul", node.inputs, node.outputs, {}, node.source)
    return emit_product(view, plain, inner.inputs[0], wide[0] @ wide[1], a.astype(np.float64) @ wide[1] + b)


def _joined(a: NDArray, b: NDArray, join: Callable[[NDArray, NDArray], NDArray]) -> NDArray | None:
    """Two constants as one, when its numbers are finite and no more than the larger has."""
    with np.errstate(all="ignore"):
        made = np.asarray(join(a, b))
    return made if np.isfinite(made).all() and made.size <= max(a.size, b.size) else None


_RULES: Mapping[str, Rule] = {
    "add": _added,
    "multiply": _multiplied,
    "subtract": _subtracted,
    "divide": _divided,
    "power": _power,
    "maximum": _maximum,
    "relu": _relu,
    "matmul": _product,
    "gemm": _product,
}
