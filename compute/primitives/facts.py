"""What passes ask of a primitive beyond its rules: one value a column, and none has a default.

A row takes its facts from a kind below (``elementwise``, ``moving``, ``computing``, ``holding``). A kind settles what
is the same for all of it, and asks its rows for the rest, so that a new row cannot leave a column out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeAlias

from coterie.compute.ir import Node, Value

Category: TypeAlias = Literal["dataflow", "tensor", "nn", "control"]
Flops: TypeAlias = Callable[[Node], int]
Zero: TypeAlias = Literal["any", "all", "no"]
Half: TypeAlias = Literal["begins", "chooses", "follows", "single", "apart"]
Kind: TypeAlias = Literal["call", "choice", "loop", "user"]


@dataclass(frozen=True, slots=True)
class Held:
    """The graphs that a node holds as attributes.

    kind: they are run as they are; one of them is chosen; they are run again and again, and hand on their first
    results, of which the attribute ``carries`` says the number; or what is run is known to a primitive of the user's.
    results: the attributes whose graphs make the results of the node.
    """

    kind: Kind
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The columns.

    category: "dataflow" passes values on, "tensor" computes and moves elements, "nn" is for networks, "control" holds
    graphs.
    holds: the graphs inside a node; None where there are none.
    elementwise: element i needs element i of each operand alone, after they have been broadcast. False for what
    computes nothing and hands its operand on, to say something to a pass or to autodiff.
    view: the result is the operand under another shape or name, for which ONNX Runtime copies nothing.
    flops: floating point operations of one run. A product of two numbers and their sum are two; any other function of
    an element is one.
    cheap: one pass over a tensor and no product, so that it may be computed a second time to save memory.
    zero: the result is 0 when "any" of the first two operands is, apart from an addend; when "all" are; or "no" pass
    may know it.
    monotone: a <= b implies f(a) <= f(b), wherever they are. A logarithm is not: of some numbers it is NaN.
    nonnegative: no element of a result is below 0.
    half: in float16 a primitive "begins", as products do that are worth it; "chooses" elements, and begins where they
    are all constants; "follows" where its operands are float16; stays "single", because it leaves the range of float16
    (6e-8 to 65 504) or loses its last digits there; or stands "apart", and keeps the types that it has.
    rounds: in bfloat16 its results are rounded. False where they are elements of operands, which are rounded already.
    folds: of constants it is computed when the graph is made. False for a broadcast: its readers can take the small
    operand instead.
    derivative: only derivatives are made of it.
    """

    category: Category
    holds: Held | None
    elementwise: bool
    view: bool
    flops: Flops
    cheap: bool
    zero: Zero
    monotone: bool
    nonnegative: bool
    half: Half
    rounds: bool
    folds: bool
    derivative: bool


def elementwise(*, zero: Zero, monotone: bool, nonnegative: bool, half: Half, rounds: bool) -> Facts:
    """A function of the elements of its operands."""
    return Facts(
        category="tensor",
        holds=None,
        elementwise=True,
        view=False,
        flops=each,
        cheap=True,
        zero=zero,
        monotone=monotone,
        nonnegative=nonnegative,
        half=half,
        rounds=rounds,
        folds=True,
        derivative=False,
    )


def moving(*, category: Category, view: bool, cheap: bool, zero: Zero, half: Half, rounds: bool, folds: bool) -> Facts:
    """What only places elements."""
    return Facts(
        category=category,
        holds=None,
        elementwise=False,
        view=view,
        flops=nothing,
        cheap=cheap,
        zero=zero,
        monotone=False,
        nonnegative=False,
        half=half,
        rounds=rounds,
        folds=folds,
        derivative=False,
    )


def computing(
    *, category: Category, flops: Flops, cheap: bool, zero: Zero, nonnegative: bool, half: Half, derivative: bool
) -> Facts:
    """A function of more than an element: a product, a sum, a window."""
    return Facts(
        category=category,
        holds=None,
        elementwise=False,
        view=False,
        flops=flops,
        cheap=cheap,
        zero=zero,
        monotone=False,
        nonnegative=nonnegative,
        half=half,
        rounds=True,
        folds=True,
        derivative=derivative,
    )


def holding(kind: Kind, *results: str) -> Facts:
    """What runs graphs; passes go inside instead. Its own operations are those of the graphs."""
    return Facts(
        category="control",
        holds=Held(kind, results),
        elementwise=False,
        view=False,
        flops=nothing,
        cheap=False,
        zero="no",
        monotone=False,
        nonnegative=False,
        half="apart",
        rounds=True,
        folds=False,
        derivative=False,
    )


def each(node: Node) -> int:
    """One operation an element of the result."""
    return node.output.type.size


def nothing(node: Node) -> int:
    """No operation."""
    return 0


def read(node: Node) -> int:
    """One operation an element of the last operand."""
    return node.inputs[-1].type.size


def product(node: Node) -> int:
    """A product of matrices, and its addend."""
    a = node.inputs[0].type.shape
    inner = a[0] if node.attributes.get("transpose_a") else a[-1]
    size = node.output.type.size
    return 2 * size * inner + (size if len(node.inputs) == 3 else 0)


def window(image: Callable[[Node], Value], kernel: Callable[[Node], Value]) -> Flops:
    """A convolution: for each element of the convolved image, a kernel over the channels of a group."""

    def flops(node: Node) -> int:
        size = image(node).type.size
        return 2 * size * prod(kernel(node).type.shape[1:]) + (size if len(node.inputs) == 3 else 0)

    return flops


def pooled(node: Node) -> int:
    """One operation for each element of each window."""
    return node.output.type.size * prod(node.attributes["kernel"])


def softmax(node: Node) -> int:
    """A maximum, a difference, an exponential, a sum and a quotient."""
    return 5 * node.output.type.size
