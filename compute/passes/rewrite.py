"""The one way in which passes change graphs: sweep over the nodes in order and let a rule replace some."""

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from coterie.compute.ir import Graph, NDArray, Node, Value, constant_node
from coterie.compute.table import PLAIN, PRIMITIVES
from coterie.compute.verify import verify_pass
from coterie.errors import InternalError

Rule: TypeAlias = "Callable[[Node, View], Value | None]"


class View:
    """What a rule sees of the graph, and how it adds nodes. Values are those of the graph before the sweep, or results
    of ``emit``.
    """

    def __init__(self, graph: Graph) -> None:
        self._producers = graph.producers()
        self._uses = Counter(value for node in graph.nodes for value in node.inputs)
        self._uses.update(graph.outputs.values())
        self.mapping: dict[Value, Value] = {}
        self.nodes: list[Node] = []
        self.source = ""

    def producer(self, value: Value, *primitives: str) -> Node | None:
        """The node that makes a value, if it is one of these primitives."""
        node = self._producers.get(value)
        return node if node is not None and node.primitive in primitives else None

    def uses(self, value: Value) -> int:
        """How many nodes and outputs read a value."""
        return self._uses[value]

    def constant(self, value: Value) -> NDArray | None:
        """The numbers of a value, if it is a constant."""
        node = self.producer(value, "constant")
        return None if node is None else node.attributes["value"]

    def emit(self, primitive: str, *inputs: Value, **attributes: Any) -> Value:
        """Add a node."""
        operands = tuple(self.mapping.get(value, value) for value in inputs)
        (type_,) = PRIMITIVES[primitive].infer([value.type for value in operands], attributes)
        output = Value(type_)
        return self.append(Node(primitive, operands, (output,), attributes, self.source))

    def emit_constant(self, value: NDArray) -> Value:
        """Add a constant."""
        return self.append(constant_node(np.asarray(value), self.source))

    def append(self, node: Node) -> Value:
        """Add a node as it is and make it known to later rules."""
        self.nodes.append(node)
        self._producers[node.output] = node
        return node.output


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Sweep once. A rule returns the value that replaces the node's output (of the same type), or None to keep the
    node. The same graph when nothing changed.
    """
    view = View(graph)
    changed = False
    for node in graph.nodes:
        view.source = node.source
        # Rules speak of nodes with one output; what a node holds has passes of its own.
        replacement = rule(node, view) if node.primitive in PLAIN else None
        if replacement is not None:
            changed = True
            replacement = view.mapping.get(replacement, replacement)
            if replacement.type != node.output.type:
                raise InternalError(
                    f"A pass replaced {node.primitive} of type {node.output.type} by one of type {replacement.type}."
                )
            view.mapping[node.output] = replacement
            continue
        operands = tuple(view.mapping.get(value, value) for value in node.inputs)
        if operands != node.inputs:
            view.nodes.append(Node(node.primitive, operands, node.outputs, node.attributes, node.source))
        else:
            view.nodes.append(node)
    if not changed:
        return graph
    outputs = {name: view.mapping.get(value, value) for name, value in graph.outputs.items()}
    return verify_pass(graph, Graph(graph.inputs, tuple(view.nodes), outputs))
