"""Apply a graph to arrays, and build one from a function of arrays."""

from collections.abc import Callable, Sequence

from coterie.compute.array import Array, bind
from coterie.compute.control.bind import bind_structured, is_structured
from coterie.compute.ir import Graph, Type, Value
from coterie.compute.recorder import RECORDER, Recorder
from coterie.compute.source import replaying


def replay(graph: Graph, inputs: Sequence[Array]) -> dict[Value, Array]:
    """Apply every node of a graph to arrays, in the context of the caller: evaluated outside a trace, recorded inside.
    The array of every value.
    """
    environment = dict(zip(graph.inputs.values(), inputs, strict=True))
    for node in graph.nodes:
        with replaying(node.source):
            operands = [environment[value] for value in node.inputs]
            if node.primitive == "constant":
                environment[node.output] = Array(node.attributes["value"])
            elif is_structured(node.primitive):
                results = bind_structured(node.primitive, operands, node.attributes)
                environment.update(zip(node.outputs, results, strict=True))
            else:
                environment[node.output] = bind(node.primitive, *operands, **node.attributes)
    return environment


def apply(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a graph for these inputs, in the context of the caller."""
    environment = replay(graph, inputs)
    return [environment[value] for value in graph.outputs.values()]


def build(types: Sequence[Type], fn: Callable[[list[Array]], Sequence[Array]], parent: Recorder | None = None) -> Graph:
    """The graph of a function of arrays of these types; its inputs and outputs are named by position. It is closed: no
    array of a trace may be used but these. With ``parent``, an open trace, those of that trace become further inputs.
    """
    recorder = Recorder(parent)
    inputs = [
        Array(None, value=recorder.add_input(str(index), type_), recorder=recorder) for index, type_ in enumerate(types)
    ]
    token = RECORDER.set(recorder)
    try:
        outputs = {str(index): recorder.lift(array) for index, array in enumerate(fn(inputs))}
    finally:
        RECORDER.reset(token)
    return recorder.finish(outputs)
