"""Estimates of what a graph costs: floating point operations, and bytes that pass between nodes and memory.

Both count from shapes alone. They say whether a rewrite makes a graph smaller, not how long it runs.
"""

from collections.abc import Callable

from coterie.compute.ir import Graph, Node, require_graph
from coterie.compute.memory.lifetimes import VIEWS, type_bytes
from coterie.compute.primitives.facts import Held
from coterie.compute.table import PRIMITIVES


def flops(graph: Graph) -> int:
    """Floating point operations of one run. A product of two numbers and their sum are two; any other function of an
    element is one. A loop whose length depends on data counts as one step, a choice as its larger branch.
    """
    require_graph("flops", graph)
    return sum(_node_flops(node) for node in graph.nodes)


def bytes_moved(graph: Graph) -> int:
    """Bytes that all nodes read and write, those inside calls too, which run as nodes of their own. Views move nothing,
    constants are read by their readers.
    """
    require_graph("bytes_moved", graph)
    return sum(_node_bytes(node) for node in graph.nodes)


def _node_flops(node: Node) -> int:
    row = PRIMITIVES[node.primitive].facts
    return row.flops(node) if row.holds is None else _held(node, row.holds, flops)


def _node_bytes(node: Node) -> int:
    if node.primitive in VIEWS or node.primitive == "constant":
        return 0
    if (held := PRIMITIVES[node.primitive].facts.holds) is not None:
        return _held(node, held, bytes_moved)
    return sum(type_bytes(value.type) for value in (*dict.fromkeys(node.inputs), *node.outputs))


def _held(node: Node, held: Held, measure: Callable[[Graph], int]) -> int:
    """What the graphs inside a node cost in one run of it."""
    parts = {name: measure(value) for name, value in node.attributes.items() if isinstance(value, Graph)}
    if held.kind == "choice":
        return max(parts[name] for name in held.results)
    if held.kind == "loop":
        return sum(parts.values()) * max(node.attributes.get("length", 1), 1)
    return sum(parts[name] for name in held.results)  # another graph is the gradient
