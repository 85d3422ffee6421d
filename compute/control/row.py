"""What a structured primitive is: one row of rules over nodes that hold graphs.

Its graphs are closed: whatever a function took from around it is an operand. The rules work on graphs by means that the
caller hands them, so that this layer knows neither autodiff nor vmap nor the ONNX writer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from coterie.compute.ir import Attributes, Graph, NDArray, Node, Type
from coterie.compute.primitives import rules
from coterie.compute.primitives.facts import Facts
from coterie.compute.primitives.row import Emitter

if TYPE_CHECKING:
    from coterie.compute.array import Array

STEPS = -1
"""The size of an axis that is only known when a loop has run: the leading axis of a stack that while gives to scan."""

Run: TypeAlias = Callable[[Graph, Sequence[NDArray]], list[NDArray]]
"""Evaluate a graph on arrays by position."""


@dataclass(frozen=True, slots=True)
class Call:
    """One application as its gradient rule sees it. ``outputs`` are those of the saving form."""

    inputs: "tuple[Array, ...]"
    outputs: "tuple[Array, ...]"
    attributes: Attributes


class Pullback(Protocol):
    """Differentiate a graph."""

    def __call__(self, graph: Graph, wanted: Sequence[bool], seeded: Sequence[bool]) -> Graph:
        """The graph from the inputs and the cotangents of the seeded outputs to the cotangents of the wanted inputs."""
        ...


@dataclass(frozen=True, slots=True)
class Batched:
    """One application to ``size`` examples. Mapped inputs hold them along axis 0."""

    inputs: "tuple[Array, ...]"
    mapped: tuple[bool, ...]
    size: int
    attributes: Attributes
    graph: "BatchGraph"


class BatchGraph(Protocol):
    """Map a graph over examples."""

    def __call__(
        self, graph: Graph, mapped: Sequence[bool], size: int, wanted: Sequence[bool]
    ) -> tuple[Graph, list[bool]]:
        """The graph of all examples, and which outputs are mapped: those that must be, and the wanted ones."""
        ...


class GraphEmitter(Emitter, Protocol):
    """What a structured lowering may ask of the ONNX writer besides single operators."""

    def inline(self, graph: Graph, names: Sequence[str]) -> list[str]:
        """Write the nodes of a graph here, and return the names of its outputs."""
        ...

    def fresh(self, stem: str) -> str:
        """A name that nothing else has."""
        ...

    def subgraph(self, inputs: Sequence[tuple[str, Type]], build: Callable[[], Sequence[tuple[str, Type]]]) -> Any:
        """The ONNX graph of nodes that ``build`` emits, which returns its outputs; it sees all outer names. The types
        are those in the file, where rank 0 is carried as [1].
        """
        ...


def in_file(type_: Type) -> Type:
    """The type that a value has in the file."""
    return Type(type_.dtype, rules.carried(type_.shape))


def copies(emit: GraphEmitter, names: Sequence[str], types: Sequence[Type]) -> list[tuple[str, Type]]:
    """Outputs of a subgraph: each needs a name of its own, made inside."""
    return [(emit.op("Identity", name), in_file(type_)) for name, type_ in zip(names, types, strict=True)]


Lanes: TypeAlias = "list[tuple[Array, bool]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Structured:
    """One structured primitive.

    infer(types, attributes): the types of all outputs; raises ShapeError or DTypeError.
    evaluate(run, arrays, attributes): the reference meaning on NumPy arrays.
    saving(attributes): the attributes of the form that is run where a gradient will be wanted. Its first outputs are
    those of the plain form; further ones are what the gradient reads.
    gradient(call, cotangents, wanted, pullback): the cotangent of each wanted input, None for zero. cotangents: one for
    each output, None for zero.
    batch(call): each result and whether it is mapped.
    lower(emit, node, names): the names of all outputs in ONNX, for providers with control flow.
    inline(inputs, attributes, replay): the same in plain primitives; None where the number of steps is not known.
    facts: what passes ask of it.
    """

    name: str
    infer: Callable[[Sequence[Type], Attributes], tuple[Type, ...]]
    evaluate: Callable[[Run, Sequence[NDArray], Attributes], list[NDArray]]
    saving: Callable[[Attributes], Attributes]
    gradient: "Callable[[Call, Sequence[Array | None], Sequence[bool], Pullback], Sequence[Array | None]]"
    batch: "Callable[[Batched], Lanes]"
    lower: Callable[[GraphEmitter, Node, Sequence[str]], list[str]]
    inline: "Callable[[Sequence[Array], Attributes, Replay], list[Array] | None]"
    facts: Facts


Replay: TypeAlias = "Callable[[Graph, Sequence[Array]], list[Array]]"
"""Apply a graph to arrays by position."""


def types_of(graph: Graph) -> tuple[Type, ...]:
    """The types of a graph's outputs."""
    return tuple(value.type for value in graph.outputs.values())


def input_types(graph: Graph) -> tuple[Type, ...]:
    """The types of a graph's inputs."""
    return tuple(value.type for value in graph.inputs.values())


def same(attributes: Attributes) -> Attributes:
    """The saving form of what saves nothing: its gradient computes again what it needs."""
    return attributes
