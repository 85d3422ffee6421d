"""Convolutions of examples that lie beside each other, written plainly again.

A file for CPUs has the examples of a batch beside each other where rows are short and weights are inputs, which trains
faster (``passes.tune.examples_beside``). In a file for inference weights are constants, for which runtimes have
layouts of their own, and a quantiser and an accelerator expect the plain convolution.
"""

from coterie.compute.ir import Attributes, Graph, Node, Value
from coterie.compute.passes.rewrite import View, rewrite


def put_examples_apart(graph: Graph) -> Graph:
    """One sweep."""
    return rewrite(graph, _rule)


def _rule(node: Node, view: View) -> Value | None:
    """[n, b, C, H W] → [n, C, H, W b], convolved, → [n, b, O, H' W']: a plain convolution of n b examples."""
    if node.primitive != "transpose" or node.attributes["permutation"] != (0, 3, 1, 2):
        return None
    behind = _alone(view, node.inputs[0], "reshape")
    conv = _alone(view, behind.inputs[0], "conv") if behind else None
    before = _alone(view, conv.inputs[0], "reshape") if conv else None
    first = _alone(view, before.inputs[0], "transpose") if before else None
    if conv is None or first is None or first.attributes["permutation"] != (0, 2, 3, 1):
        return None
    n, beside, channels, places = first.inputs[0].type.shape
    batch, read, height, wide = conv.inputs[0].type.shape
    if (batch, read, height * wide) != (n, channels, places * beside) or node.output.type.shape[:2] != (n, beside):
        return None
    plain = _plain(conv, beside, wide)
    if plain is None or conv.output.type.shape[2] * (conv.output.type.shape[3] // beside) != node.output.type.shape[3]:
        return None
    x = view.emit("reshape", first.inputs[0], shape=(n * beside, channels, height, wide // beside))
    return view.emit("reshape", view.emit("conv", x, *conv.inputs[1:], **plain), shape=node.output.type.shape)


def _alone(view: View, value: Value, primitive: str) -> Node | None:
    """The node of a primitive that makes a value which nothing else reads."""
    return view.producer(value, primitive) if view.uses(value) == 1 else None


def _plain(conv: Node, beside: int, wide: int) -> Attributes | None:
    """The window without the neighbours; None where it does not step from one example to itself."""
    (rows, columns), (down, across) = conv.attributes["dilation"], conv.attributes["stride"]
    top, (left, right) = conv.attributes["padding"]
    one_column = conv.inputs[1].type.shape[3] == 1  # then the dilation says nothing
    if (down, across) != (1, 1) or any(count % beside for count in (wide, left, right)):
        return None
    if columns % beside and not one_column:
        return None
    dilation = (rows, max(columns // beside, 1))
    return dict(conv.attributes) | {"dilation": dilation, "padding": (top, (left // beside, right // beside))}
