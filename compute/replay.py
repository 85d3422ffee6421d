"""Apply a graph to arrays, and build one from a function of arrays."""

from collections.abc import Callable, Sequence

from coterie.compute.array_type import Array, bind_all
from coterie.compute.ir import Graph, Node, Type, Value
from coterie.compute.recorder import RECORDER, Recorder
from coterie.compute.walk import environment_of, outputs_of, walk


def replay(graph: Graph, inputs: Sequence[Array]) -> dict[Value, Array]:
    """Apply every node of a graph to arrays, in the context of the caller: evaluated outside a trace, recorded inside.
    The array of every value.
    """
    return walk(graph, environment_of(graph, inputs), applied)


def applied(node: Node, operands: Sequence[Array]) -> tuple[Array, ...]:
    """What a node makes of arrays in the context of the caller. A constant is data."""
    if node.primitive == "constant":
        return (Array(node.attributes["value"]),)
    return bind_all(node.primitive, operands, node.attributes)


def apply(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a graph for these inputs, in the context of the caller."""
    return outputs_of(graph, replay(graph, inputs))


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
