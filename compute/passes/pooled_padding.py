"""Paddings before poolings, written so that ONNX Runtime computes them.

Its optimiser (``PadFusion``, at every level above none) makes a Pad by 0 the padding of the pooling behind it. But a
maximum pads with -infinity, so the borders of negative images change, and a padding as wide as the window is refused
when the file is loaded. It looks for zeros byte by byte; -0 is the same number and is left alone. (A convolution pads
with 0 as well: there the fusion is right, and welcome.)
"""

from coterie.compute.ir import Graph, Node
from coterie.compute.passes.subgraphs import inside
from coterie.compute.verify import verify

_POOLINGS = frozenset({"max_pool", "average_pool"})


def keep_paddings(graph: Graph) -> Graph:
    """The graph whose paddings by 0 that a pooling reads, perhaps in another dtype, are by -0."""
    graph = inside(keep_paddings)(graph)
    pooled = {node.inputs[0] for node in graph.nodes if node.primitive in _POOLINGS}
    pooled |= {node.inputs[0] for node in graph.nodes if node.primitive == "astype" and node.output in pooled}
    if not any(_melts(node) and node.output in pooled for node in graph.nodes):
        return graph
    nodes = tuple(_by_minus_zero(node) if _melts(node) and node.output in pooled else node for node in graph.nodes)
    return verify(Graph(graph.inputs, nodes, graph.outputs))


def _melts(node: Node) -> bool:
    return node.primitive == "pad" and node.output.type.is_float and node.attributes["value"] == 0


def _by_minus_zero(node: Node) -> Node:
    return Node(node.primitive, node.inputs, node.outputs, {**node.attributes, "value": -0.0}, node.source)
