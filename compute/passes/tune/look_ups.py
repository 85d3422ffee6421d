"""The gradient of a look-up in a large table: the rows added at their indices, instead of a product with a one-hot
matrix of as many columns as the table has rows.
"""

import numpy as np

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.passes.dead_code import remove_dead_code
from coterie.compute.passes.lookups import LookUps, rows_added
from coterie.compute.passes.rewrite import View, rewrite
from coterie.compute.passes.subgraphs import inside

# In hundredths of a nanosecond (ONNX Runtime 1.31, one x86-64 core with vectors of 512 bits): an element of a one-hot
# matrix that is made, one that is multiplied with one number, a number that is added at its place, and one of the zeros
# to which it is added.
_MADE, _MULTIPLIED, _PLACED, _ZERO = 65, 2, 500, 30
# How many times its cost it must save: several threads share a product, and one alone adds rows at their places, always
# in their order.
_MARGIN = 2


def rows_in_place(graph: Graph) -> Graph:
    """The graph in which gradients of look-ups in large tables are sums into rows; the same graph where it has none."""
    before = graph
    inner = inside(rows_in_place)(graph)
    known = LookUps(inner)
    graph = rewrite(inner, lambda node, view: _rule(node, view, known))
    return graph if graph is before else remove_dead_code(graph)


def _rule(node: Node, view: View, known: LookUps) -> Value | None:
    type_, addend = node.output.type, node.inputs[2:]
    if node.primitive != "gemm" or any(value.type != type_ for value in addend):
        return None
    if not _pays(*node.inputs[:2], zeros=0 if addend else type_.size) or (found := rows_added(node, view)) is None:
        return None
    if found.own is not None and known.refuse(found):
        ids, rows = view.emit("reshape", found.own, shape=(found.own.type.size,)), found.rows
    else:
        ids, rows = found.placed(view)
    zero = view.emit_constant(np.zeros((), type_.dtype))
    table = addend[0] if addend else view.emit("broadcast_to", zero, shape=type_.shape)
    return view.emit("scatter_add", table, ids, rows)


def _pays(one_hot: Value, rows: Value, *, zeros: int) -> bool:
    """Whether a product of matrices of these sizes, were it one with a one-hot matrix, costs more than the sum."""
    product = one_hot.type.size * (_MADE + _MULTIPLIED * rows.type.shape[-1])
    return product > _MARGIN * (rows.type.size * _PLACED + zeros * _ZERO)
