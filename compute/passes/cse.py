"""Compute equal expressions once."""

from typing import Any

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.passes.rewrite import View, rewrite


def share_common_subexpressions(graph: Graph) -> Graph:
    """The graph in which no two nodes apply one primitive to the same operands with the same attributes."""
    seen: dict[Any, Value] = {}

    def rule(node: Node, view: View) -> Value | None:
        operands = tuple(view.mapping.get(value, value) for value in node.inputs)
        key = (node.primitive, operands, _frozen(node))
        if key in seen:
            return seen[key]
        seen[key] = node.output
        return None

    return rewrite(graph, rule)


def _frozen(node: Node) -> Any:
    if node.primitive == "constant":
        value = node.attributes["value"]
        return (value.dtype.name, value.shape, value.tobytes())
    # As text: 0.0 and -0.0 are equal but not the same, and neither are 1 and True.
    return repr(sorted(node.attributes.items()))
