"""Which state may be stepped where it lies: a proof over the graph.

To bind an output onto the input that it replaces is silently wrong where a node reads the old value after the new one
is written. It is right where that cannot happen, and this module proves it from dependencies alone, for any order in
which a runtime may run the nodes: every node that reads the old value must be finished before the node that writes the
new one can start, or is that node, and the writer is elementwise. The moments of Adam are like this, as are counters,
metric sums and Adam's first weights; most weights are not, because the products that pass gradients back through them
may still be waiting.

A runtime also changes the nodes. It drops those that a constant makes idle, such as a product with 1, and it melts the
elementwise nodes behind a product into it: tanh(x w + b) becomes one node, which writes its first elements before it
has read all of x. So a product that reads the old value must end before another product, whose result the writer needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import onnx

# One element out for one element in, computed from the elements at the same place.
_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "Sqrt", "Exp", "Tanh", "Sigmoid", "Relu"})
# An element of the result is made of many elements; what follows may be melted into it, but never another of its kind.
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "ReduceSum", "ReduceMax", "Softmax", "Gather"})
# What is done with its operands when it ends. A view of an operand, like Reshape, is not: what reads the view reads the
# operand's memory later.
_FINAL = _ELEMENTWISE | _PRODUCTS


def stepped_in_place(data: bytes, carry: Mapping[str, str]) -> frozenset[str]:
    """The carried inputs of a serialised graph that may share memory with the outputs that replace them.

    carry: output → input, of equal dtype and shape. Empty for a graph with control flow, whose inner nodes read outer
    values.
    """
    graph = cast(Any, onnx).load_from_string(data).graph
    if any(attribute.HasField("g") or attribute.graphs for node in graph.node for attribute in node.attribute):
        return frozenset()
    shapes = {
        value.name: tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.output)
    }
    asked = {value.name for value in graph.output}
    nodes = _nodes(graph)
    makers = {name: index for index, node in enumerate(nodes) for name in node.outputs}
    readers: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        for name in set(node.inputs):
            readers.setdefault(name, []).append(index)

    def reading(name: str, writer: int) -> set[int]:
        """The nodes that may read the memory of a value: also those behind a node that a runtime may drop."""
        found, waiting = set[int](), [name]
        while waiting:
            for index in readers.get(waiting.pop(), ()):
                if index not in found:
                    found.add(index)
                    if index != writer and nodes[index].idle:
                        waiting += nodes[index].outputs
        return found

    def proven(output: str, read: str) -> bool:
        writer = makers.get(output)
        if writer is None or shapes[output] != shapes[read] or nodes[writer].operator not in _ELEMENTWISE:
            return False
        finished = nodes[writer].after & ~nodes[writer].melted
        return read not in asked and all(
            reader == writer or (finished >> reader & 1 and nodes[reader].operator in _FINAL)
            for reader in reading(read, writer)
        )

    return frozenset(read for output, read in carry.items() if proven(output, read))


@dataclass(frozen=True, slots=True)
class _Node:
    """A node of a graph. after: bit i is set where node i must be finished before this one can start. melted: bit i is
    set where node i is a product that a runtime may make one with this node, as there is no other product in between.
    idle: whether a constant is among the operands, so that a runtime may find that the node does nothing and drop it.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    after: int
    melted: int
    idle: bool


def _nodes(graph: Any) -> list[_Node]:
    constants = {"", *(tensor.name for tensor in graph.initializer)}
    makers: dict[str, int] = {}
    nodes: list[_Node] = []
    for index, node in enumerate(graph.node):
        inputs, outputs, after, melted = tuple(node.input), tuple(node.output), 0, 0
        for maker in (makers[name] for name in inputs if name in makers):
            after |= nodes[maker].after | 1 << maker
            melted |= 1 << maker if nodes[maker].operator in _PRODUCTS else nodes[maker].melted
        nodes.append(_Node(node.op_type, inputs, outputs, after, melted, idle=not constants.isdisjoint(inputs)))
        makers.update(dict.fromkeys(outputs, index))
        if constants.issuperset(inputs):
            constants.update(outputs)
    return nodes
