"""Weights put into a graph as constants: what makes an inference graph of one that is given them at every call."""

from collections.abc import Mapping

import numpy as np

from coterie.compute.ir import Graph, NDArray, Node, Value, constant_node, require_graph
from coterie.compute.verify import verify
from coterie.errors import InputError


def bind_weights(graph: Graph, weights: Mapping[str, NDArray]) -> Graph:
    """The graph in which the named inputs are constants; the others stay, in their order.

    Raises InputError for a name that is no input and for an array of another dtype or shape.
    """
    require_graph("bind_weights", graph)
    if unknown := [name for name in weights if name not in graph.inputs]:
        raise InputError(
            f"bind_weights: the graph has no input {', '.join(unknown)}.", hint=f"It has {', '.join(graph.inputs)}."
        )
    constants: dict[Value, Node] = {}
    for name, array in weights.items():
        value = graph.inputs[name]
        held = constant_node(np.asarray(array))
        if held.output.type != value.type:
            raise InputError(f"bind_weights: {name!r} is {value.type}, got {held.output.type}.")
        constants[value] = Node("constant", (), (value,), held.attributes)
    inputs = {name: value for name, value in graph.inputs.items() if value not in constants}
    return verify(Graph(inputs, (*constants.values(), *graph.nodes), graph.outputs))
