"""What a primitive is: one row of rules and facts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from coterie.compute.array_type import Array, bind_all
from coterie.compute.ir import Attributes, Graph, NDArray, Node, Type
from coterie.compute.primitives.facts import Facts


@dataclass(frozen=True, slots=True)
class Call:
    """One application of a primitive as its gradient rule sees it. ``outputs`` are those of the saving form."""

    inputs: "tuple[Array, ...]"
    outputs: "tuple[Array, ...]"
    attributes: Attributes

    @property
    def output(self) -> "Array":
        """The only output of a primitive that has one."""
        return self.outputs[0]


class Pullback(Protocol):
    """Differentiate a graph."""

    def __call__(self, graph: Graph, wanted: Sequence[bool], seeded: Sequence[bool]) -> Graph:
        """The graph from the inputs and the cotangents of the seeded outputs to the cotangents of the wanted inputs."""
        ...


class BatchGraph(Protocol):
    """Map a graph over examples."""

    def __call__(
        self, graph: Graph, mapped: Sequence[bool], size: int, wanted: Sequence[bool]
    ) -> tuple[Graph, list[bool]]:
        """The graph of all examples, and which outputs are mapped: those that must be, and the wanted ones."""
        ...


@dataclass(frozen=True, slots=True)
class Batched:
    """One application of a primitive to ``size`` examples as its batch rule sees it. A mapped input holds the examples
    along its axis 0, the others are shared by all; at least one is mapped. ``attributes`` are those for one example.
    graph: maps the graphs that a node holds.
    """

    name: str
    inputs: "tuple[Array, ...]"
    mapped: tuple[bool, ...]
    size: int
    attributes: Mapping[str, Any]
    graph: BatchGraph


class Emitter(Protocol):
    """What a lowering may ask of the ONNX writer. Tensors are named; a tensor of rank 0 is carried as [1]."""

    def op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add one ONNX node with a single output and return the name of that output."""
        ...

    def ops(self, operator: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add one ONNX node with several outputs."""
        ...

    def constant(self, value: NDArray) -> str:
        """The name of an initialiser with this value (equal values share one)."""
        ...

    def scalar(self, value: float, dtype: str) -> str:
        """The name of an initialiser of shape [1]."""
        ...

    def fixed(self, name: str) -> bool:
        """Whether a tensor is an initialiser: its values are known when the file is loaded."""
        ...

    def integers(self, values: Sequence[int]) -> str:
        """The name of an int64 initialiser: the shapes, axes and pads that ONNX takes as operands."""
        ...

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


Run: TypeAlias = Callable[[Graph, Sequence[NDArray]], list[NDArray]]
"""Evaluate a graph on arrays by position."""
Replay: TypeAlias = "Callable[[Graph, Sequence[Array]], list[Array]]"
"""Apply a graph to arrays by position."""
Lanes: TypeAlias = "Sequence[tuple[Array, bool]]"
Cotangents: TypeAlias = "Sequence[Array | None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Primitive:
    """One primitive. Its rules work on the graphs that it holds by means that the caller hands them, so that this layer
    knows neither autodiff nor vmap nor the ONNX writer; such graphs are closed: whatever a function took from around it
    is an operand.

    infer(types, attributes): the types of the results; raises ShapeError or DTypeError with a reason and a hint,
    without the place (the caller knows it).
    evaluate(run, arrays, attributes): the reference meaning, on NumPy arrays whose types ``infer`` accepted.
    saving(attributes): the attributes of the form that is run where a gradient will be wanted. Its first outputs are
    those of the plain form; further ones are what the gradient reads.
    gradient(call, cotangents, wanted, pullback): the cotangent of each wanted input, None for zero everywhere, written
    in primitives, so that it can be differentiated again. cotangents: one for each output, None for zero.
    batch(call): the results for all examples and whether each is mapped, its examples along axis 0; in primitives.
    lower(emit, node, names): the names of all outputs: the same meaning in ONNX operators, portable ones where the
    primitive holds no graphs.
    inline(inputs, attributes, replay): the same in primitives that hold no graphs; None where the number of steps is
    not known.
    facts: what passes ask of it.
    """

    name: str
    infer: Callable[[Sequence[Type], Attributes], tuple[Type, ...]]
    evaluate: Callable[[Run, Sequence[NDArray], Attributes], Sequence[NDArray]]
    saving: Callable[[Attributes], Attributes]
    gradient: "Callable[[Call, Cotangents, Sequence[bool], Pullback], Cotangents]"
    batch: "Callable[[Batched], Lanes]"
    lower: Callable[[Emitter, Node, Sequence[str]], Sequence[str]]
    inline: "Callable[[Sequence[Array], Attributes, Replay], Sequence[Array] | None]"
    facts: Facts


Infer: TypeAlias = Callable[..., Type]
Evaluate: TypeAlias = Callable[..., NDArray]
Rule: TypeAlias = "Callable[[Call, Array], Array]"
Gradient: TypeAlias = "Callable[[int, Call, Array], Array | None]"
Batch: TypeAlias = "Callable[[Batched], Array]"
Lower: TypeAlias = Callable[[Emitter, Node, Sequence[str]], str]


def single(
    *, name: str, infer: Infer, evaluate: Evaluate, gradient: Gradient, batch: Batch, lower: Lower, facts: Facts
) -> Primitive:
    """The row of a primitive that holds no graphs and has one output, by rules that speak of that output alone.

    infer(*types, **attributes), evaluate(*arrays, **attributes), batch(call) and lower(emit, node, names) give it;
    gradient(index, call, cotangent): the cotangent of input ``index``.
    """

    def gradients(
        call: Call, cotangents: Cotangents, wanted: Sequence[bool], pullback: Pullback
    ) -> "Sequence[Array | None]":
        (cotangent,) = cotangents
        if cotangent is None:
            return [None] * len(wanted)
        return [gradient(index, call, cotangent) if want else None for index, want in enumerate(wanted)]

    return Primitive(
        name=name,
        infer=lambda types, attributes: (infer(*types, **attributes),),
        evaluate=lambda run, arrays, attributes: (evaluate(*arrays, **attributes),),
        saving=same,
        gradient=no_gradients if gradient is no_gradient else gradients,
        batch=lambda call: ((batch(call), True),),
        lower=lambda emit, node, names: (lower(emit, node, names),),
        inline=lambda inputs, attributes, replay: bind_all(name, inputs, attributes),
        facts=facts,
    )


def same(attributes: Attributes) -> Attributes:
    """The saving form of what saves nothing: its gradient computes again what it needs."""
    return attributes


def per_input(*rules: "Rule | None") -> Gradient:
    """A gradient made of one rule for each input; None for an input that has no gradient."""

    def gradient(index: int, call: Call, cotangent: "Array") -> "Array | None":
        rule = rules[index]
        return None if rule is None else rule(call, cotangent)

    return gradient


def no_gradient(index: int, call: Call, cotangent: "Array") -> None:
    """The result does not change with its inputs, or changes in steps: the gradient is zero almost everywhere."""
    return None


def no_gradients(call: Call, cotangents: Cotangents, wanted: Sequence[bool], pullback: Pullback) -> Sequence[None]:
    """``no_gradient`` for every input."""
    return [None] * len(wanted)


def operator(name: str) -> Lower:
    """A lowering to one ONNX operator that takes the same inputs and no attributes."""
    return lambda emit, node, names: emit.op(name, *names)
