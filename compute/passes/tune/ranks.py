"""Ranks of numbers: one beside a column [..., 1] gets as many axes. ONNX Runtime walks along the last axis; it sees a
number beside many rows of one element, one call for each, unless both shapes say the same of that axis.
"""

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.passes.cse import share_common_subexpressions
from coterie.compute.passes.dead_code import remove_dead_code
from coterie.compute.passes.rewrite import View, rewrite
from coterie.compute.passes.subgraphs import inside
from coterie.compute.table import ELEMENTWISE


def equal_ranks(graph: Graph) -> Graph:
    """The graph in which numbers beside columns have as many axes; the same graph where they do already."""
    before = graph
    graph = rewrite(inside(equal_ranks)(graph), _rule)
    return graph if graph is before else share_common_subexpressions(remove_dead_code(graph))


def _rule(node: Node, view: View) -> Value | None:
    shape = node.output.type.shape
    if node.primitive not in ELEMENTWISE or len(shape) < 2 or shape[-1] != 1 or node.output.type.size == 1:
        return None
    operands = [
        view.emit_constant(constant.reshape((1,) * len(shape)))
        if (constant := view.constant(value)) is not None and constant.size == 1 and constant.ndim < len(shape)
        else value
        for value in node.inputs
    ]
    return None if operands == list(node.inputs) else view.emit(node.primitive, *operands, **node.attributes)
