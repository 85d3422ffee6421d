"""What the primitives that hold graphs share."""

from collections.abc import Sequence

from coterie.compute.ir import Graph, Type
from coterie.compute.primitives import rules
from coterie.compute.primitives.row import Emitter

STEPS = -1
"""The size of an axis that is only known when a loop has run: the leading axis of a stack that while gives to scan."""


def in_file(type_: Type) -> Type:
    """The type that a value has in the file."""
    return Type(type_.dtype, rules.carried(type_.shape))


def copies(emit: Emitter, names: Sequence[str], types: Sequence[Type]) -> list[tuple[str, Type]]:
    """Outputs of a subgraph: each needs a name of its own, made inside."""
    return [(emit.op("Identity", name), in_file(type_)) for name, type_ in zip(names, types, strict=True)]


def types_of(graph: Graph) -> tuple[Type, ...]:
    """The types of a graph's outputs."""
    return tuple(value.type for value in graph.outputs.values())


def input_types(graph: Graph) -> tuple[Type, ...]:
    """The types of a graph's inputs."""
    return tuple(value.type for value in graph.inputs.values())
