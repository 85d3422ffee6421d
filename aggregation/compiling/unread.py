"""A graph of a plan without the frozen tensors that it was offered and does not read."""

from collections.abc import Callable, Mapping

from coterie.aggregation.compiling.describe import role_of
from coterie.compute.array import Array
from coterie.compute.ir import Graph
from coterie.compute.passes import optimise
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named


def traced(function: Callable[[GraphInputs], dict[str, Array]], inputs: Mapping[str, TensorSpec]) -> Graph:
    """The function as an optimised graph, without the frozen inputs that it does not read, such as a teacher's where
    nothing is trained: a device need not feed them, and an exported model does not hold them.
    """
    graph = optimise(trace_named(function, inputs))
    read = {value for node in graph.nodes for value in node.inputs} | set(graph.outputs.values())
    kept = {name: value for name, value in graph.inputs.items() if value in read or role_of(name) != "frozen"}
    return graph if len(kept) == len(graph.inputs) else Graph(kept, graph.nodes, graph.outputs)
