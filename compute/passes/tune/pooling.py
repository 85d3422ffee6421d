"""Pooling before relu and before the bias of a convolution. It pays before gradients are taken: the masks and the sum
that is the bias's gradient get as few elements as the pooled image. After that, what would move is spread over the
gradient of the pooling, so this pass is one of those that run on what is about to be differentiated.
"""

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.passes.algebra import pooled_first
from coterie.compute.passes.dead_code import remove_dead_code
from coterie.compute.passes.rewrite import View, rewrite


def pool_first(graph: Graph) -> Graph:
    """The graph with its poolings moved; the same graph where there is none to move.

    The greatest of x + b is the greatest x, plus b, bit for bit, because rounding keeps order. In the gradient,
    elements that are equal only after rounding no longer share.
    """
    for _ in range(2):  # relu first, then the bias behind it
        moved = rewrite(graph, _rule)
        graph = graph if moved is graph else remove_dead_code(moved)
    return graph


def _rule(node: Node, view: View) -> Value | None:
    if node.primitive != "max_pool":
        return None
    if pooled := pooled_first(node, view):
        return pooled
    conv = view.producer(node.inputs[0], "conv")
    if conv is None or len(conv.inputs) != 3 or view.uses(node.inputs[0]) != 1:
        return None
    x, weights, bias = conv.inputs
    image = view.emit("max_pool", view.emit("conv", x, weights, **conv.attributes), **node.attributes)
    return view.emit("add", image, view.emit("reshape", bias, shape=(*bias.type.shape, 1, 1)))
