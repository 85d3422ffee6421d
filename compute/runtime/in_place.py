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

from collections.abc import Iterable, Iterator, Mapping
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
    nodes: list[Any] = list(graph.node)
    if any(attribute.HasField("g") or attribute.graphs for node in nodes for attribute in node.attribute):
        return frozenset()
    shapes = {
        value.name: tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.output)
    }
    makers = {name: index for index, node in enumerate(nodes) for name in node.output}
    constants = {"", *(tensor.name for tensor in graph.initializer)}
    for node in nodes:
        if constants.issuperset(node.input):
            constants.update(node.output)
    read_after = {value.name for value in graph.output}
    readers: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        for name in node.input:
            readers.setdefault(name, []).append(index)

    def reading(name: str, writer: int) -> Iterator[int]:
        for index in readers.get(name, ()):
            yield index
            if index != writer and not constants.isdisjoint(nodes[index].input):
                for result in nodes[index].output:
                    yield from reading(result, writer)

    def proven(output: str, read: str) -> bool:
        writer = makers.get(output)
        if writer is None or shapes[output] != shapes[read] or nodes[writer].op_type not in _ELEMENTWISE:
            return False
        finished = _ancestors(nodes, makers, writer) - _melted(nodes, makers, writer)
        return read not in read_after and all(
            reader == writer or (reader in finished and nodes[reader].op_type in _FINAL)
            for reader in reading(read, writer)
        )

    return frozenset(read for output, read in carry.items() if proven(output, read))


def _ancestors(nodes: list[Any], makers: Mapping[str, int], node: int) -> set[int]:
    """The nodes that must be finished before this one can start."""
    return _above(nodes, makers, node, until=frozenset())


def _melted(nodes: list[Any], makers: Mapping[str, int], node: int) -> set[int]:
    """The products that a runtime may make one with this node: those with no other product in between."""
    near = _above(nodes, makers, node, until=_PRODUCTS)
    return {index for index in near if nodes[index].op_type in _PRODUCTS}


def _above(nodes: list[Any], makers: Mapping[str, int], node: int, *, until: frozenset[str]) -> set[int]:
    """The nodes on which this one depends, but not those behind an operator of ``until``."""

    def makes(index: int) -> Iterable[int]:
        return (makers[name] for name in nodes[index].input if name in makers)

    found: set[int] = set()
    waiting = list(makes(node))
    while waiting:
        index = waiting.pop()
        if index not in found:
            found.add(index)
            if nodes[index].op_type not in until:
                waiting += makes(index)
    return found
