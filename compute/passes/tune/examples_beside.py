"""Convolutions, and gradients of their inputs, over short rows, with the examples of a batch beside each other.

What decides on a CPU is how a runtime lays out image windows as a matrix: row by row, so long rows cost less than short
ones, and one large product costs less than one for each example. So examples become part of the columns, and a dilation
of their number keeps the kernel's elements on theirs. The measurements are of ONNX Runtime 1.31 on one x86-64 core with
512-bit vectors.
"""

from coterie.compute.ir import Attributes, Graph, Node, Value
from coterie.compute.passes.rewrite import View, rewrite
from coterie.compute.passes.subgraphs import inside

# Columns of the result below which examples are interleaved into them: at 14 columns and fewer this takes 0.6 to 0.95
# of the time, at 16 it makes no difference, from 28 on it is slower.
_NARROW = 16
# How many examples: at least the first number, where it begins to pay, and at most the second; more gain nothing.
_BESIDE = (4, 8)
# Columns that they may make together in the gradient of the input, whose matrix of windows is written and read again
# and would leave the cache.
_TOGETHER = 64
_BEGINNING = (0, 2, 3, 1)
"""How examples get beside each other: the order of the axes in the transposition."""


def examples_beside(graph: Graph) -> Graph:
    """The graph in which examples lie beside each other where rows are short; the same graph where none are.

    Not for constant weights, which runtimes lay out anew for a plain convolution, and quantisers and accelerators look
    for there.
    """
    return rewrite(inside(examples_beside)(graph), _rule)


def widened(window: Attributes, columns: int) -> Attributes:
    """The same window over an image in which ``columns`` neighbours stand for each column."""
    above, (left, right) = window["padding"]
    rows_apart, columns_apart = window["dilation"]
    padding = (above, (left * columns, right * columns))
    return {**window, "padding": padding, "dilation": (rows_apart, columns_apart * columns)}


def _rule(node: Node, view: View) -> Value | None:
    if node.primitive not in ("conv", "conv_input_gradient") or _lies_beside(node, view):
        return None
    most = _BESIDE[1]
    if node.primitive == "conv_input_gradient":
        most = min(most, _TOGETHER // node.inputs[0].type.shape[3])
    elif view.constant(node.inputs[1]) is not None:
        return None
    beside = _beside(node, most)
    return None if beside == 1 else _interleaved(node, view, beside)


def _lies_beside(node: Node, view: View) -> bool:
    """Whether this is what the rule wrote."""
    laid = view.producer(node.inputs[0], "reshape")
    first = view.producer(laid.inputs[0], "transpose") if laid else None
    return first is not None and first.attributes["permutation"] == _BEGINNING


def _beside(node: Node, most: int) -> int:
    """How many examples to interleave into the columns, a divisor of the batch up to ``most``; 1 for none."""
    n, channels = node.inputs[0].type.shape[:2]
    kernel, made = node.inputs[1].type.shape[2:], node.output.type.shape
    if (
        node.attributes["stride"] != (1, 1)
        or min(channels, made[1]) == 1  # the rearrangement costs as much as the work
        or kernel == (1, 1)
        or made[3] >= _NARROW
    ):
        return 1
    return next((count for count in range(most, _BESIDE[0] - 1, -1) if n % count == 0), 1)


def _interleaved(node: Node, view: View, beside: int) -> Value:
    """[N, C, H, W] → [N / beside, C, H, W beside], the primitive, and back."""
    n, c, h, w = node.inputs[0].type.shape
    _, made, height, width = node.output.type.shape
    n //= beside
    x = view.emit("reshape", node.inputs[0], shape=(n, beside, c, h * w))
    x = view.emit("reshape", view.emit("transpose", x, permutation=_BEGINNING), shape=(n, c, h, w * beside))
    attributes = dict(widened(node.attributes, beside))
    if node.primitive == "conv_input_gradient":
        attributes["size"] = (height, width * beside)
    out = view.emit(node.primitive, x, *node.inputs[1:], **attributes)
    out = view.emit("reshape", out, shape=(n, made, height * width, beside))
    return view.emit("reshape", view.emit("transpose", out, permutation=(0, 3, 1, 2)), shape=node.output.type.shape)
