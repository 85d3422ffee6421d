"""A graph computed in float16 where that keeps its meaning; its inputs and outputs stay what they are."""

from typing import Any

import numpy as np

from coterie.compute.ir import Graph, NDArray, Node, Type, Value, constant_node
from coterie.compute.passes.inference.refusal import require_inference
from coterie.compute.primitives.facts import Half
from coterie.compute.table import PRIMITIVES
from coterie.compute.verify import verify

_LARGEST, _SMALLEST = 65504.0, 2.0**-14  # of the numbers that have all their digits


def in_float16(graph: Graph) -> Graph:
    """The graph with float16 weights and activations between its float32 ends.

    Matrix products and convolutions are computed in float16, and so is what follows them, up to the next node that
    needs more: sums, squares, exponentials, logarithms, roots, quotients, and any node with a constant that float16
    does not hold. From there float32 goes on to the next product (Micikevicius et al. 2018). A product whose own
    weights do not fit stays in float32 too. Tensors of other dtypes are left alone.

    Raises GraphRefused for a graph that trains.
    """
    require_inference("in_float16", graph)
    return _Halver(graph).result()


class _Halver:
    """Writes the graph anew, each float32 value in one of two precisions, or both where both are read."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes: list[Node] = []
        self._known: dict[tuple[Value, str], Value] = {}
        self._home: dict[Value, str] = {}  # the precision in which a value was made
        self._constants: dict[Value, NDArray] = {}

    def result(self) -> Graph:
        for value in self._graph.inputs.values():
            self._made(value, value.type.dtype, value)
        for node in self._graph.nodes:
            self._rewrite(node)
        outputs = {name: self._read(value, value.type.dtype, "") for name, value in self._graph.outputs.items()}
        return verify(Graph(self._graph.inputs, tuple(self._nodes), outputs))

    def _rewrite(self, node: Node) -> None:
        if node.primitive == "constant":
            self._constants[node.output] = node.attributes["value"]
            self._home[node.output] = "any"
            return
        row = PRIMITIVES[node.primitive]
        dtype = "float16" if self._halves(node, row.facts.half) else "float32"
        operands = tuple(
            self._read(value, dtype if value.type.dtype == "float32" else value.type.dtype, node.source)
            for value in node.inputs
        )
        if row.facts.half == "apart":
            self._nodes.append(Node(node.primitive, operands, node.outputs, node.attributes, node.source))
            for value in node.outputs:
                self._made(value, value.type.dtype, value)
            return
        attributes: dict[str, Any] = dict(node.attributes)
        if node.primitive == "astype" and attributes["dtype"] == "float32":
            attributes["dtype"] = dtype
        (type_,) = row.infer([value.type for value in operands], attributes)
        output = Value(type_)
        self._nodes.append(Node(node.primitive, operands, (output,), attributes, node.source))
        self._made(node.output, output.type.dtype, output)

    def _halves(self, node: Node, half: Half) -> bool:
        """Whether a node is computed in float16."""
        floats = [value for value in node.inputs if value.type.dtype == "float32"]
        if half in ("apart", "single"):
            return False
        if not floats or not all(_fits(self._constants[value]) for value in floats if value in self._constants):
            return False
        if not _fits(np.asarray(node.attributes.get("value", 0.0))):
            return False
        if half == "begins":
            return True
        made = [self._home[value] for value in floats if value not in self._constants]
        if node.primitive == "multiply" and len(set(node.inputs)) == 1:
            return False  # a square
        if half == "chooses" and not made:
            return True  # a table of weights
        return bool(made) and all(home == "float16" for home in made)

    def _made(self, value: Value, dtype: str, as_value: Value) -> None:
        self._home[value] = dtype
        self._known[value, dtype] = as_value

    def _read(self, value: Value, dtype: str, source: str) -> Value:
        """A value in a precision, made once."""
        if (value, dtype) not in self._known:
            constant = self._constants.get(value)
            if constant is not None:
                made = constant_node(constant.astype(dtype), source)
            else:
                attributes = {"dtype": dtype}
                operand = self._known[value, self._home[value]]
                made = Node("astype", (operand,), (Value(Type(dtype, operand.type.shape)),), attributes, source)
            self._nodes.append(made)
            self._known[value, dtype] = made.output
        return self._known[value, dtype]


def _fits(constant: NDArray) -> bool:
    """Whether float16 holds the numbers of a constant: its greatest is neither beyond the range nor among the numbers
    below 2^-14, which have fewer digits. Small weights beside large ones may vanish; infinities stay what they are.
    """
    sizes = np.abs(constant[np.isfinite(constant)]) if constant.dtype.kind == "f" else np.zeros(0)
    greatest = float(sizes.max()) if sizes.size else 0.0
    return greatest == 0.0 or _SMALLEST <= greatest <= _LARGEST
