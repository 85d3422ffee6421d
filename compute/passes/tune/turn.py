"""A graph in which the matrices that a layout names lie transposed."""

from typing import Any

from coterie.compute.ir import Graph, Node, Value, constant_node
from coterie.compute.passes import fixpoint
from coterie.compute.passes.algebra import simplify
from coterie.compute.passes.constants import fold_constants
from coterie.compute.passes.cse import share_common_subexpressions
from coterie.compute.passes.dead_code import remove_dead_code
from coterie.compute.passes.subgraphs import inside
from coterie.compute.passes.tune.layout import REDUCTIONS, Layout, flags, is_product, is_transposition, lies_along
from coterie.compute.table import ELEMENTWISE, PRIMITIVES
from coterie.compute.verify import verify


def smaller_right(graph: Graph) -> Graph:
    """The graph in which matrices lie so that products copy least; the same graph where they do already."""
    graph = inside(smaller_right)(graph)
    layout = Layout(graph)
    if not layout.settle():
        return graph
    turned = _Turning(graph, layout).run()
    return fixpoint(turned, remove_dead_code, fold_constants, share_common_subexpressions, simplify)


class _Turning:
    """One walk over the nodes. Each value is known as it was, turned, or both."""

    def __init__(self, graph: Graph, layout: Layout) -> None:
        self._graph = graph
        self._layout = layout
        self._nodes: list[Node] = []
        self._known: dict[tuple[Value, bool], Value] = {(value, False): value for value in graph.inputs.values()}
        self._source = ""

    def run(self) -> Graph:
        """The graph."""
        for node in self._graph.nodes:
            self._source = node.source
            turned = self._layout.turned(node.outputs[0])
            if is_product(node):
                follows = self._layout.follows(node)
                self._known[node.output, turned == follows] = self._product(node, turned == follows)
            elif (made := self._written(node, turned)) is not None:
                self._known[node.output, turned] = made
            else:
                self._keep(node)
        outputs = {name: self._get(value, False) for name, value in self._graph.outputs.items()}
        return verify(Graph(self._graph.inputs, tuple(self._nodes), outputs))

    def _get(self, value: Value, turned: bool) -> Value:
        """A value as it was or turned. Where it is known the other way alone, a node turns it."""
        found = self._known.get((value, turned))
        if found is None:
            found = self._emit("transpose", self._known[value, not turned], permutation=(1, 0))
            self._known[value, turned] = found
        return found

    def _emit(self, primitive: str, *operands: Value, **attributes: Any) -> Value:
        (type_,) = PRIMITIVES[primitive].infer([value.type for value in operands], attributes)
        output = Value(type_)
        self._nodes.append(Node(primitive, operands, (output,), attributes, self._source))
        return output

    def _keep(self, node: Node) -> None:
        operands = tuple(self._get(value, False) for value in node.inputs)
        same = operands == node.inputs
        self._nodes.append(node if same else Node(node.primitive, operands, node.outputs, node.attributes, node.source))
        self._known.update(((value, False), value) for value in node.outputs)

    def _written(self, node: Node, turned: bool) -> Value | None:
        """What a node becomes; None where it stays."""
        if is_transposition(node):
            return self._get(node.inputs[0], not turned)
        if node.primitive in REDUCTIONS and self._layout.turned(node.inputs[0]):
            return self._reduced(node)
        if not turned:
            return None
        if node.primitive == "constant":
            made = constant_node(node.attributes["value"].T, node.source)
            self._nodes.append(made)
            return made.output
        if node.primitive in ELEMENTWISE:
            operands = [self._beside(node, value) for value in node.inputs]
            return self._emit(node.primitive, *operands, **node.attributes)
        return None

    def _product(self, node: Node, turned: bool) -> Value:
        flip_a, flip_b = (
            flag != self._layout.turned(value) for flag, value in zip(flags(node), node.inputs, strict=False)
        )
        a, b = (self._get(value, self._layout.turned(value)) for value in node.inputs[:2])
        addend = [self._beside(node, value) if turned else self._get(value, False) for value in node.inputs[2:]]
        if turned:
            a, b, flip_a, flip_b = b, a, not flip_b, not flip_a
        if not (addend or flip_a or flip_b):
            return self._emit("matmul", a, b)
        return self._emit("gemm", a, b, *addend, transpose_a=flip_a, transpose_b=flip_b)

    def _reduced(self, node: Node) -> Value:
        axes = tuple(sorted(1 - axis for axis in node.attributes["axes"]))
        made = self._emit(node.primitive, self._get(node.inputs[0], True), **{**node.attributes, "axes": axes})
        shape = node.output.type.shape
        return made if made.type.shape == shape else self._emit("reshape", made, shape=shape)

    def _beside(self, node: Node, value: Value) -> Value:
        """An operand in the shape that it needs beside a turned result: numbers of a row become those of a column."""
        if lies_along(node, value):
            return self._get(value, True)
        plain = self._get(value, False)
        if value.type.size == 1:
            return plain
        shape = (1, value.type.size) if value.type.shape[-1] == 1 else (value.type.size, 1)
        return self._emit("reshape", plain, shape=shape)
