"""Estimates of what a graph costs: floating point operations, and bytes that pass between nodes and memory.

Both count from shapes alone. They say whether a rewrite makes a graph smaller, not how long it runs.
"""

from collections.abc import Callable, Mapping
from math import prod

from coterie.compute.control.table import STRUCTURED
from coterie.compute.ir import Graph, Node, require_graph
from coterie.compute.memory.lifetimes import VIEWS, type_bytes

# Nodes that only place elements.
_MOVING = VIEWS | frozenset("constant transpose broadcast_to slice pad concat gather gather_along enlarge flip".split())
_SOFTMAX = 5  # a maximum, a difference, an exponential, a sum and a quotient


def flops(graph: Graph) -> int:
    """Floating point operations of one run. A product of two numbers and their sum are two; any other function of an
    element is one. A loop whose length depends on data counts as one step, a choice as its larger branch.
    """
    require_graph("flops", graph)
    return sum(_node_flops(node) for node in graph.nodes)


def bytes_moved(graph: Graph) -> int:
    """Bytes that all nodes read and write, those inside calls too, which run as nodes of their own. Views move nothing,
    constants are read by their readers.
    """
    require_graph("bytes_moved", graph)
    return sum(_node_bytes(node) for node in graph.nodes)


def _node_flops(node: Node) -> int:
    if node.primitive in STRUCTURED:
        return _held(node, flops)
    if node.primitive in _MOVING:
        return 0
    rule = _FLOPS.get(node.primitive)
    return rule(node) if rule else sum(value.type.size for value in node.outputs)


def _node_bytes(node: Node) -> int:
    if node.primitive in VIEWS or node.primitive == "constant":
        return 0
    if node.primitive in STRUCTURED:
        return _held(node, bytes_moved)
    return sum(type_bytes(value.type) for value in (*dict.fromkeys(node.inputs), *node.outputs))


def _held(node: Node, measure: Callable[[Graph], int]) -> int:
    """What the graphs inside a node cost in one run of it."""
    parts = {name: measure(value) for name, value in node.attributes.items() if isinstance(value, Graph)}
    if node.primitive == "cond":
        return max(parts.values())
    if node.primitive == "scan":
        return parts["body"] * max(node.attributes["length"], 1)
    if node.primitive == "custom":
        return parts["graph"]  # the other graph is its gradient
    return sum(parts.values())


def _product(node: Node) -> int:
    a = node.inputs[0].type.shape
    inner = a[0] if node.attributes.get("transpose_a") else a[-1]
    size = node.output.type.size
    return 2 * size * inner + (size if len(node.inputs) == 3 else 0)


def _window(node: Node) -> int:
    """A convolution: for each element of the convolved image, a kernel over the channels of a group."""
    image = {"conv": node.output, "conv_input_gradient": node.inputs[0], "conv_weight_gradient": node.inputs[1]}
    kernel = node.output if node.primitive == "conv_weight_gradient" else node.inputs[1]
    size = image[node.primitive].type.size
    return 2 * size * prod(kernel.type.shape[1:]) + (size if len(node.inputs) == 3 else 0)


def _pooled(node: Node) -> int:
    return node.output.type.size * prod(node.attributes["kernel"])


def _read(node: Node) -> int:
    return node.inputs[-1].type.size


_FLOPS: Mapping[str, Callable[[Node], int]] = {
    "matmul": _product,
    "gemm": _product,
    "conv": _window,
    "conv_input_gradient": _window,
    "conv_weight_gradient": _window,
    "max_pool": _pooled,
    "average_pool": _pooled,
    "sum": _read,
    "max": _read,
    "scatter_add": _read,
    "softmax": lambda node: _SOFTMAX * node.output.type.size,
}
