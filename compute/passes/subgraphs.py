"""Nodes that hold graphs: replace calls by what they call, and run passes inside the others."""

from collections.abc import Callable
from typing import Any

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.table import PRIMITIVES
from coterie.compute.verify import verify, verify_pass

_HELD = {name: row.facts.holds for name, row in PRIMITIVES.items() if row.facts.holds is not None}
_CALLS = frozenset(name for name, held in _HELD.items() if held.kind == "call")


def inline_calls(graph: Graph) -> Graph:
    """The graph in which the nodes of called graphs stand in place of the calls."""
    if all(node.primitive not in _CALLS for node in graph.nodes):
        return graph
    nodes: list[Node] = []
    mapping: dict[Value, Value] = {}
    for node in graph.nodes:
        operands = [mapping.get(value, value) for value in node.inputs]
        if node.primitive in _CALLS:
            results = copied(node.attributes["graph"], operands, nodes)
            mapping.update(zip(node.outputs, results, strict=True))
        else:
            nodes.append(Node(node.primitive, tuple(operands), node.outputs, node.attributes, node.source))
    outputs = {name: mapping.get(value, value) for name, value in graph.outputs.items()}
    return verify(Graph(graph.inputs, tuple(nodes), outputs))


def copied(graph: Graph, operands: list[Value], nodes: list[Node]) -> list[Value]:
    """Append copies of a graph's nodes, with values of their own, and return what its outputs became."""
    mapping = dict(zip(graph.inputs.values(), operands, strict=True))
    for node in graph.nodes:
        outputs = tuple(Value(value.type) for value in node.outputs)
        inputs = tuple(mapping[value] for value in node.inputs)
        nodes.append(Node(node.primitive, inputs, outputs, node.attributes, node.source))
        mapping.update(zip(node.outputs, outputs, strict=True))
    return [mapping[value] for value in graph.outputs.values()]


_CHOICES_AND_LOOPS = frozenset(name for name, held in _HELD.items() if held.kind in ("choice", "loop"))


def drop_unread_results(graph: Graph) -> Graph:
    """The graph in which choices and loops give only results that something reads; carries stay. What made the others
    is dead code inside.
    """
    read = {value for node in graph.nodes for value in node.inputs} | set(graph.outputs.values())
    nodes = [_with_results(node, read) if node.primitive in _CHOICES_AND_LOOPS else node for node in graph.nodes]
    if all(new is old for new, old in zip(nodes, graph.nodes, strict=True)):
        return graph
    return verify_pass(graph, Graph(graph.inputs, tuple(nodes), graph.outputs))


def _with_results(node: Node, read: set[Value]) -> Node:
    held = _HELD[node.primitive]
    carries: int = node.attributes["carries"] if held.kind == "loop" else 0
    kept = [index for index, value in enumerate(node.outputs) if index < carries or value in read]
    if len(kept) == len(node.outputs) or not kept:
        return node
    attributes = dict(node.attributes)
    for name in held.results:
        graph: Graph = attributes[name]
        outputs = list(graph.outputs.values())
        attributes[name] = Graph(graph.inputs, graph.nodes, {str(i): outputs[index] for i, index in enumerate(kept)})
    results = tuple(node.outputs[index] for index in kept)
    return Node(node.primitive, node.inputs, results, attributes, node.source)


def inside(run: Callable[[Graph], Graph]) -> Callable[[Graph], Graph]:
    """The pass that applies another one to the graphs inside nodes."""

    def descend(graph: Graph) -> Graph:
        nodes: list[Node] = []
        for node in graph.nodes:
            if node.primitive not in _HELD:
                nodes.append(node)
                continue
            after: dict[str, Any] = {
                name: run(value) if isinstance(value, Graph) else value for name, value in node.attributes.items()
            }
            unchanged = all(after[name] is value for name, value in node.attributes.items())
            nodes.append(node if unchanged else Node(node.primitive, node.inputs, node.outputs, after, node.source))
        if all(new is old for new, old in zip(nodes, graph.nodes, strict=True)):
            return graph
        return verify_pass(graph, Graph(graph.inputs, tuple(nodes), graph.outputs))

    return descend
