"""Indices that are data, kept inside what they index: runtimes refuse others, and one such row would end the step."""

import numpy as np

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.passes.rewrite import View, rewrite
from coterie.compute.passes.subgraphs import inside


def bounded_indices(graph: Graph) -> Graph:
    """The graph in which no index leaves its axis: one that does is taken for the nearest that does not. Indices that
    are inside, those that count from the end included, give what they gave before.
    """
    return inside(bounded_indices)(rewrite(graph, _bounded))


def _bounded(node: Node, view: View) -> Value | None:
    if node.primitive not in ("gather", "gather_along", "scatter_add"):
        return None
    table, indices, *updates = node.inputs
    axis: int = node.attributes.get("axis", 0)
    size = table.type.shape[axis]
    if view.constant(indices) is not None or size == 0:
        return None
    dtype = indices.type.dtype
    lowered = view.emit("minimum", indices, view.emit_constant(np.full((), size - 1, dtype)))
    kept = view.emit("maximum", lowered, view.emit_constant(np.full((), -size, dtype)))
    return view.emit(node.primitive, table, kept, *updates, **node.attributes)
