"""Which way round matrices lie. A CPU's matrix product copies its right operand into blocks, and its left one too where
that is read transposed. So the smaller operand belongs on the right: of a layer over few rows not its weight. Then the
result is the transposition of what was asked for; it stays so through functions of its elements, sums and further
products, which read either way, and is turned back where something else reads it.

Matrices between which there are only functions of elements lie the same way: a region. A region is turned where that
costs less, in elements moved, and never where it holds an input or a result of the graph: state is stepped in place.
A product whose region lies the dearer way may be computed the other way and turned, where that still costs less.
"""

from dataclasses import dataclass, field

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.table import ELEMENTWISE

# In elements of a right operand that are copied into blocks, 0.2 ns each (ONNX Runtime 1.31, one x86-64 core with
# vectors of 512 bits): a node more, an element that a transposition moves, an element of a left operand that is read
# transposed, and as many multiplications as cost one.
_NODE = 3000
_MOVED = 2
_LEFT = 2
_WORK = 12
# How many times its cost a transposition must save: all this is an estimate.
_MARGIN = 4
# Columns of a result that a kernel computes at once.
_BLOCK = 16

_PRODUCTS = frozenset({"matmul", "gemm"})
REDUCTIONS = frozenset({"sum", "max"})


@dataclass(eq=False, slots=True)
class _Region:
    """values: matrices of one shape that lie the same way. fixed: whether it may not be turned."""

    values: list[Value] = field(default_factory=list[Value])
    fixed: bool = False
    turned: bool = False


def is_matrix(value: Value) -> bool:
    return value.type.rank == 2 and min(value.type.shape) > 1


def is_product(node: Node) -> bool:
    return node.primitive in _PRODUCTS and all(value.type.rank == 2 for value in node.inputs[:2])


def flags(node: Node) -> tuple[bool, bool]:
    """Whether a product reads its operands transposed."""
    return node.attributes.get("transpose_a", False), node.attributes.get("transpose_b", False)


def is_transposition(node: Node) -> bool:
    return node.primitive == "transpose" and node.attributes["permutation"] == (1, 0)


def lies_along(node: Node, value: Value) -> bool:
    """Whether an operand must lie as a node's result does: of a function of elements, or as the addend of a product."""
    along = node.primitive in ELEMENTWISE or (is_product(node) and value in node.inputs[2:])
    return along and is_matrix(value) and value.type.shape == node.output.type.shape


class Layout:
    """The regions of a graph, and which of them are turned: none at first."""

    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        self._producers = graph.producers()
        self._readers: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            for value in dict.fromkeys(node.inputs):
                self._readers.setdefault(value, []).append(node)
        self._regions: dict[Value, _Region] = {}
        for value in (*graph.inputs.values(), *(made for node in graph.nodes for made in node.outputs)):
            if is_matrix(value):
                self._regions[value] = _Region([value])
        for node in graph.nodes:
            for value in node.inputs:
                if lies_along(node, value):
                    self._join(value, node.output)
        for value in (*graph.inputs.values(), *graph.outputs.values()):
            if value in self._regions:
                self._regions[value].fixed = True

    def _join(self, first: Value, second: Value) -> None:
        kept, gone = self._regions[first], self._regions[second]
        if kept is gone:
            return
        if len(kept.values) < len(gone.values):
            kept, gone = gone, kept
        kept.values += gone.values
        self._regions.update(dict.fromkeys(gone.values, kept))

    def turned(self, value: Value) -> bool:
        """Whether a value lies transposed."""
        region = self._regions.get(value)
        return region is not None and region.turned

    def settle(self) -> bool:
        """Turn regions until none is better the other way. Whether the graph has to change."""
        regions = [region for region in dict.fromkeys(self._regions.values()) if self._has_product(region)]
        changed = True
        while changed:  # each turn makes the whole cheaper, so this ends
            changed = False
            for region in regions:
                before = self._cost(region)
                region.turned = not region.turned
                if self._cost(region) < before:
                    changed = True
                else:
                    region.turned = not region.turned
        found = any(region.turned for region in regions)
        return found or any(is_product(node) and not self.follows(node) for node in self._nodes)

    def _has_product(self, region: _Region) -> bool:
        made = (self._producers.get(value) for value in region.values)
        return not region.fixed and any(node is not None and is_product(node) for node in made)

    def _cost(self, region: _Region) -> int:
        """Elements moved by all that makes or reads a region's values."""
        made = (self._producers[value] for value in region.values if value in self._producers)
        read = (node for value in region.values for node in self._readers.get(value, ()))
        nodes = dict.fromkeys((*made, *read))
        return sum(map(self._of_node, nodes)) + sum(map(self._turned_back, region.values))

    def _of_node(self, node: Node) -> int:
        if is_product(node):
            return self._of_product(node)
        if is_transposition(node):
            value = node.inputs[0]
            return _moving(value) if self.turned(value) == self.turned(node.output) else 0
        if node.primitive in REDUCTIONS:
            return _NODE if node.attributes["keepdims"] and self.turned(node.inputs[0]) else 0
        if node.primitive in ELEMENTWISE:
            return sum(_NODE for value in node.inputs if self.turned(node.output) and self._reshaped(node, value))
        if node.primitive == "constant":
            return 0
        return sum(_moving(made) for made in node.outputs if self.turned(made))

    def _of_product(self, node: Node) -> int:
        turned = self.turned(node.output)
        return self._form(node, turned) if self.follows(node) else self._form(node, not turned) + _moving(node.output)

    def follows(self, node: Node) -> bool:
        """Whether a product is computed as its result lies. Otherwise it is computed the other way and turned."""
        turned = self.turned(node.output)
        if not is_matrix(node.output) or any(lies_along(node, value) for value in node.inputs[2:]):
            return True
        return self._form(node, turned) <= self._form(node, not turned) + _moving(node.output)

    def _form(self, node: Node, turned: bool) -> int:
        """What a product costs beside its multiplications when its result is made as it was, or turned."""
        (m, n), (a, b) = node.output.type.shape, node.inputs[:2]
        flip_a, flip_b = flags(node)
        k = a.type.shape[0 if flip_a else 1]
        flip = flip_a != self.turned(a)
        if turned:
            m, n, flip = n, m, flip_b == self.turned(b)
        idle = -n % _BLOCK
        right = self._producers.get(a if turned else b)
        # The runtime copies a constant into blocks when it loads the file.
        copied = 0 if right is not None and right.primitive == "constant" else k * (n + idle)
        cost = copied + k * m * idle // _WORK + (_LEFT * k * m if flip else 0)
        return cost + sum(_NODE for value in node.inputs[2:] if turned and self._reshaped(node, value))

    def _reshaped(self, node: Node, value: Value) -> bool:
        """Whether an operand that is no matrix needs another shape because the result is turned."""
        if value.type.size == 1 or lies_along(node, value):
            return False
        maker = self._producers.get(value)
        return maker is None or maker.primitive not in ("reshape", "constant")

    def _turned_back(self, value: Value) -> int:
        """A value that something reads which cannot read it turned is turned back, once."""
        plain = self.turned(value) and any(_reads_plain(node, value) for node in self._readers.get(value, ()))
        return _moving(value) if plain else 0


def _reads_plain(node: Node, value: Value) -> bool:
    """Whether a node can read a matrix only as it was."""
    if is_product(node) or is_transposition(node) or node.primitive in REDUCTIONS:
        return False
    return not lies_along(node, value)


def _moving(value: Value) -> int:
    return _MARGIN * (_NODE + _MOVED * value.type.size)
