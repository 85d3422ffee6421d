"""Matrix products with constant weights in one form: x[rows, inputs] times weights[outputs, inputs], transposed.

Training puts the smaller operand right, because a product packs its right operand at every call. Constant weights are
packed once, when the file is loaded; so they stand right. Held as layers hold them, an exported weight that nothing was
folded into is the trained one, byte by byte.
"""

from collections.abc import Callable, Mapping

import numpy as np

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.passes.rewrite import View, rewrite
from coterie.compute.table import ELEMENTWISE

_SWAPPED = (1, 0)


def turn_products(graph: Graph) -> Graph:
    """One sweep: constants to the right, transposed matrices into the products that read them."""
    return rewrite(graph, _rule)


def _rule(node: Node, view: View) -> Value | None:
    if node.primitive in ELEMENTWISE and node.output.type.rank == 2:
        return _past(node, view)
    rule = _RULES.get(node.primitive)
    return rule(node, view) if rule and all(value.type.rank == 2 for value in node.inputs[:2]) else None


def _product(node: Node, view: View) -> Value | None:
    flips = [bool(node.attributes.get(flag)) for flag in ("transpose_a", "transpose_b")]
    operands = list(node.inputs[:2])
    for index in (0, 1):
        if (matrix := _turned_matrix(view, operands[index])) is not None:
            operands[index], flips[index] = matrix, not flips[index]
        shape = operands[index].type.shape
        if flips[index] and 1 in shape and view.constant(operands[index]) is None:
            operands[index], flips[index] = view.emit("reshape", operands[index], shape=shape[::-1]), False
    left, right = (view.constant(value) for value in operands)
    if left is not None and right is None:
        return _turned(node, view, operands, flips)
    if right is not None and left is None and not flips[1]:
        operands[1], flips[1] = view.emit_constant(np.ascontiguousarray(right.T)), True
    if operands == list(node.inputs[:2]):
        return None
    return view.emit("gemm", *operands, *node.inputs[2:], transpose_a=flips[0], transpose_b=flips[1])


def _turned_matrix(view: View, value: Value) -> Value | None:
    """x, when the value is the matrix x transposed; of one row or one column, that is a reshape."""
    made = view.producer(value, "transpose", "reshape")
    if made is None or value.type.rank != 2:
        return None
    x = made.inputs[0]
    if made.primitive == "transpose":
        return x if made.attributes["permutation"] == _SWAPPED else None
    return x if x.type.shape == value.type.shape[::-1] and 1 in x.type.shape else None


def _turned(node: Node, view: View, operands: list[Value], flips: list[bool]) -> Value | None:
    """W x = (x.T W.T).T, with the addend turned too."""
    addend: list[Value] = []
    for value in node.inputs[2:]:
        full = view.constant(value)
        if full is None:
            return None
        matrix = full.reshape((1,) * (2 - full.ndim) + full.shape)
        addend.append(view.emit_constant(np.ascontiguousarray(matrix.T)))
    product = view.emit("gemm", operands[1], operands[0], *addend, transpose_a=not flips[1], transpose_b=not flips[0])
    return view.emit("transpose", product, permutation=_SWAPPED)


def _past(node: Node, view: View) -> Value | None:
    """An elementwise function of transposed matrices: the function, then transposed."""
    operands: list[Value] = []
    moved = False
    for value in node.inputs:
        matrix, constant = _turned_matrix(view, value), view.constant(value)
        if matrix is not None and view.uses(value) == 1 and value.type.shape == node.output.type.shape:
            operands.append(matrix)
            moved = True
        elif value.type.size == 1:
            operands.append(value)
        elif constant is not None:
            full = constant.reshape((1,) * (2 - constant.ndim) + constant.shape)
            operands.append(view.emit_constant(np.ascontiguousarray(full.T)))
        else:
            return None
    if not moved:
        return None
    return view.emit("transpose", view.emit(node.primitive, *operands, **node.attributes), permutation=_SWAPPED)


_RULES: Mapping[str, Callable[[Node, View], Value | None]] = {"matmul": _product, "gemm": _product}
