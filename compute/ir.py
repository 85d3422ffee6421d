"""The intermediate representation: a graph is a list of equations over typed values, in the order of their evaluation.

A :class:`Value` is one tensor of known dtype and static shape. A :class:`Node` computes values from values by one
primitive; array operands are inputs, everything else is an attribute. A :class:`Graph` names its inputs and outputs;
nothing else is visible outside. Values compare by identity, so that two equal-looking tensors stay two. Graphs are
never changed: a pass makes a new one. :func:`coterie.compute.verify.verify` checks the laws that are written there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import numpy as np

from coterie.compute.source import user_source
from coterie.errors import ArgumentTypeError

NARROW = ("int8", "int16")
"""Of which runtimes have few kernels: a file computes with them as int32 and keeps their low bits, as NumPy does."""
SIGNED = (*NARROW, "int32", "int64")
FLOATS = ("float16", "float32", "float64")
DTYPES = ("bool", "uint8", *SIGNED, *FLOATS)

NDArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Attribute: TypeAlias = (
    Any  # bool, int, float, str, nested tuples of them, or (for `constant` only) a read-only NumPy array
)
Attributes: TypeAlias = Mapping[str, Attribute]


@dataclass(frozen=True, slots=True)
class Type:
    """What is known of a tensor before it exists: its dtype (a NumPy name out of DTYPES) and its static shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One tensor of a graph. Compared by identity."""

    type: Type


def _no_attributes() -> Attributes:
    return {}


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One equation: outputs = primitive(inputs, attributes). ``source`` is the user's line, "file:line", or empty."""

    primitive: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attributes: Attributes = field(default_factory=_no_attributes)
    source: str = ""

    @property
    def label(self) -> str:
        """The name to show: the primitive's, or that of the user's primitive which the node carries."""
        return label(self.primitive, self.attributes)

    @property
    def output(self) -> Value:
        """The only output (every primitive of the core has exactly one)."""
        return self.outputs[0]


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A closed program: named inputs, nodes in the order of evaluation, named outputs. The order of names is the order
    of the signature.
    """

    inputs: Mapping[str, Value]
    nodes: tuple[Node, ...]
    outputs: Mapping[str, Value]

    def producers(self) -> dict[Value, Node]:
        """The node that makes each value which is not an input."""
        return {value: node for node in self.nodes for value in node.outputs}


def label(primitive: str, attributes: Attributes) -> str:
    """The name to show for an application of a primitive."""
    carried = attributes.get("primitive")  # only nodes of user primitives have an attribute of this name
    return primitive if carried is None else str(carried.name)


def constant_node(value: NDArray, source: str = "") -> Node:
    """A node that holds a constant; the array is copied once and made read-only."""
    held = np.array(value, copy=True, order="C")
    held.flags.writeable = False
    return Node("constant", (), (Value(Type(held.dtype.name, held.shape)),), {"value": held}, source)


def require_graph(function: str, graph: object) -> None:
    """Require a graph. Raises ArgumentTypeError naming the function, the user's line and what was given instead."""
    if not isinstance(graph, Graph):
        raise ArgumentTypeError(
            f"{user_source()}: {function} takes a graph, got a {type(graph).__name__}.",
            hint="A function becomes one by trace(f, *arguments).graph or trace_named(f, inputs).",
        )
