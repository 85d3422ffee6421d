"""What a primitive is: one row of rules and facts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from coterie.compute.ir import NDArray, Node, Type
from coterie.compute.primitives.facts import Facts

if TYPE_CHECKING:
    from coterie.compute.array import Array


@dataclass(frozen=True, slots=True)
class Call:
    """One application of a primitive as its gradient rule sees it."""

    inputs: "tuple[Array, ...]"
    output: "Array"
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Batched:
    """One application of a primitive to ``size`` examples as its batch rule sees it. A mapped input holds the examples
    along its axis 0, the others are shared by all; at least one is mapped. ``attributes`` are those for one example.
    """

    name: str
    inputs: "tuple[Array, ...]"
    mapped: tuple[bool, ...]
    size: int
    attributes: Mapping[str, Any]


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

    def few_kernels(self, dtype: str) -> bool:
        """Whether the file is for a CPU provider and the dtype is one that it has few kernels of: float64. What all
        versions from 1.24 on load is asked for then.
        """
        ...

    def integers(self, values: Sequence[int]) -> str:
        """The name of an int64 initialiser: the shapes, axes and pads that ONNX takes as operands."""
        ...


Infer: TypeAlias = Callable[..., Type]
Evaluate: TypeAlias = Callable[..., NDArray]
Rule: TypeAlias = "Callable[[Call, Array], Array]"
Gradient: TypeAlias = "Callable[[int, Call, Array], Array | None]"
Batch: TypeAlias = "Callable[[Batched], Array]"
Lower: TypeAlias = Callable[[Emitter, Node, Sequence[str]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Primitive:
    """One primitive.

    infer(*types, **attributes): the type of the result; raises ShapeError or DTypeError with a reason and a hint,
    without the place (the caller knows it).
    evaluate(*arrays, **attributes): the reference meaning, on NumPy arrays whose types ``infer`` accepted.
    gradient(index, call, cotangent): the cotangent of input ``index``, written in primitives, so that it can be
    differentiated again; None means zero everywhere.
    batch(call): the results for all examples along axis 0, written in primitives.
    lower(emitter, node, names): the same meaning in portable ONNX operators.
    facts: what passes ask of it.
    """

    name: str
    infer: Infer
    evaluate: Evaluate
    gradient: Gradient
    batch: Batch
    lower: Lower
    facts: Facts


def per_input(*rules: "Rule | None") -> Gradient:
    """A gradient made of one rule for each input; None for an input that has no gradient."""

    def gradient(index: int, call: Call, cotangent: "Array") -> "Array | None":
        rule = rules[index]
        return None if rule is None else rule(call, cotangent)

    return gradient


def no_gradient(index: int, call: Call, cotangent: "Array") -> None:
    """The result does not change with its inputs, or changes in steps: the gradient is zero almost everywhere."""
    return None


def operator(name: str) -> Lower:
    """A lowering to one ONNX operator that takes the same inputs and no attributes."""
    return lambda emit, node, names: emit.op(name, *names)
