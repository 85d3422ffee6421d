"""Whether a graph only answers. What inference may take for granted, that weights and statistics are numbers and not
variables, is wrong in a graph that trains: there a folded weight would never change again.
"""

from collections.abc import Callable, Iterator

from coterie.compute.ir import Graph, Node, Value, require_graph
from coterie.compute.table import having
from coterie.errors import GraphRefused

_NEXT = "next/"  # what training graphs write before the name of the input that an output replaces
_GRADIENTS = having(lambda facts: facts.derivative)
_SHIFTS = frozenset({"reshape", "broadcast_to", "negative", "multiply", "divide", "astype"})


def require_inference(function: str, graph: Graph) -> None:
    """Require a graph that only answers.

    Refused are graphs that give new values of their inputs (outputs ``next/<input>``), that hold the gradient of a
    convolution's weights, and that centre a tensor on the mean of its own batch, channel by channel, as BatchNorm does
    in training. Raises GraphRefused (code ``training_graph``) with the function, the sign and the user's line;
    ArgumentTypeError for what is no graph.
    """
    require_graph(function, graph)
    for found in _signs(graph):
        raise GraphRefused(
            f"{function}: the graph trains: {found}. What is folded into its weights could not be learned any more.",
            hint="Trace the model in evaluation mode, with its weights as constants.",
            code="training_graph",
        )


def inference_only(name: str, run: Callable[[Graph], Graph]) -> Callable[[Graph], Graph]:
    """The pass, refused on graphs that train."""

    def guarded(graph: Graph) -> Graph:
        require_inference(name, graph)
        return run(graph)

    return guarded


def _signs(graph: Graph) -> Iterator[str]:
    for name in graph.outputs:
        if name.startswith(_NEXT) and name.removeprefix(_NEXT) in graph.inputs:
            yield f"its output {name!r} is the next value of an input"
    producers = graph.producers()
    for node in graph.nodes:
        where = node.source or "a node without a line"
        if node.primitive in _GRADIENTS:
            yield f"{where} is the gradient of a convolution's weights"
        elif node.primitive == "subtract" and _centred_on_batch(node, producers):
            yield f"{where} normalises by statistics of its own batch"
        for held in node.attributes.values():
            if isinstance(held, Graph):
                yield from _signs(held)


def _centred_on_batch(node: Node, producers: dict[Value, Node]) -> bool:
    """x[B, C, ...] - (the mean of x over B, and perhaps over places), one number for each channel."""
    x, mean = node.inputs
    shape = x.type.shape
    if len(shape) < 2 or shape[0] < 2 or mean.type.size != shape[1] or node.output.type.shape != shape:
        return False
    waiting, seen = [mean], {mean}
    while waiting:
        made = producers.get(waiting.pop())
        if made is None:
            continue
        if made.primitive == "sum" and _over_batch(made, shape[0]):
            return _reaches(made.inputs[0], x, producers)
        if made.primitive in _SHIFTS | {"sum"}:
            waiting += [value for value in made.inputs if value not in seen]
            seen.update(made.inputs)
    return False


def _over_batch(node: Node, examples: int) -> bool:
    axes, shape = node.attributes["axes"], node.inputs[0].type.shape
    return 0 in axes and 1 not in axes and len(shape) > 1 and shape[0] == examples


def _reaches(value: Value, x: Value, producers: dict[Value, Node]) -> bool:
    """Whether a value is made of x by scaling and summing."""
    waiting, seen = [value], {value}
    while waiting:
        found = waiting.pop()
        if found is x:
            return True
        made = producers.get(found)
        if made is not None and made.primitive in _SHIFTS | {"sum", "average_pool"}:
            waiting += [operand for operand in made.inputs if operand not in seen]
            seen.update(made.inputs)
    return False
