"""Drop the nodes on which no output depends. Inputs stay: they are the signature."""

from coterie.compute.ir import Graph, Node
from coterie.compute.verify import verify_pass


def remove_dead_code(graph: Graph) -> Graph:
    """The graph without dead nodes; the same graph when there are none."""
    needed = set(graph.outputs.values())
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    if len(kept) == len(graph.nodes):
        return graph
    return verify_pass(graph, Graph(graph.inputs, tuple(reversed(kept)), graph.outputs))
