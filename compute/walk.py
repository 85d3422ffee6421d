"""The one way in which a graph is applied: node after node, by what an interpreter makes of each.

What there is to know of a graph that is run on NumPy, applied to arrays, differentiated, mapped over examples, written
out, rewritten for a provider or rounded is in its interpreter; the order, and the line that errors name, are here.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.source import replaying

V = TypeVar("V")
Interpreter: TypeAlias = Callable[[Node, list[V]], Sequence[V]]
"""What the outputs of a node become, by what its operands are."""


def walk(graph: Graph, environment: dict[Value, V], interpret: Interpreter[V]) -> dict[Value, V]:
    """The environment, which holds what the inputs of the graph are, with what every other value becomes. The
    interpreter may read it meanwhile.
    """
    with replaying("") as going_on_to:
        for node in graph.nodes:
            going_on_to(node.source)
            results = interpret(node, [environment[value] for value in node.inputs])
            if len(node.outputs) == 1:  # nearly always: less than half the time of the line below
                (environment[node.outputs[0]],) = results
            else:
                environment.update(zip(node.outputs, results, strict=True))
    return environment


def environment_of(graph: Graph, inputs: Sequence[V]) -> dict[Value, V]:
    """The environment of inputs by position."""
    return dict(zip(graph.inputs.values(), inputs, strict=True))


def outputs_of(graph: Graph, environment: dict[Value, V]) -> list[V]:
    """What the outputs of a graph became, by position."""
    return [environment[value] for value in graph.outputs.values()]
