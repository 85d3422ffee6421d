"""ONNX forms of the three convolution primitives: one each, for every target. What is faster on one kind of target is
written before, in primitives, by a pass of ``passes.tune``.
"""

from collections.abc import Sequence
from typing import Any

from coterie.compute.ir import Attributes, Node
from coterie.compute.primitives.row import Emitter

Pair = tuple[int, int]


def _window_attributes(attributes: Attributes) -> dict[str, Any]:
    (top, bottom), (left, right) = attributes["padding"]
    return {
        "strides": list(attributes["stride"]),
        "pads": [top, left, bottom, right],
        "dilations": list(attributes["dilation"]),
    }


def lower_conv(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    """Conv."""
    return emit.op("Conv", *names, group=node.attributes["groups"], **_window_attributes(node.attributes))


def lower_input_gradient(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    """ConvTranspose."""
    g, w = (value.type.shape for value in node.inputs)
    a = node.attributes
    # The rows and columns that a stride > 1 left over at the end of the image.
    rest = [
        a["size"][i] - ((g[2 + i] - 1) * a["stride"][i] - sum(a["padding"][i]) + a["dilation"][i] * (w[2 + i] - 1) + 1)
        for i in (0, 1)
    ]
    return emit.op("ConvTranspose", *names, group=a["groups"], output_padding=rest, **_window_attributes(a))


def swapped(node: Node) -> tuple[dict[str, Any], Pair]:
    """How the image of a conv_weight_gradient is convolved with its cotangent, and rows and columns of the result: the
    kernel's, and more where a stride left over some of the image itself.

    Stride and dilation change places when the cotangent is the kernel; what a stride left over of the padding is left
    out.
    """
    x, g, a = node.inputs[0].type.shape, node.inputs[1].type.shape, node.attributes
    ends: list[int] = []
    size: list[int] = []
    for i in (0, 1):
        first, last = a["padding"][i]
        reach = a["stride"][i] * (g[2 + i] - 1) + a["dilation"][i] * (a["kernel"][i] - 1) + 1
        ends.append(min(last, max(0, reach - first - x[2 + i])))
        left_over = first + x[2 + i] + ends[i] - reach
        size.append(a["kernel"][i] + left_over // a["dilation"][i])
    (top, _), (left, _) = a["padding"]
    padding = ((top, ends[0]), (left, ends[1]))
    window = {"stride": a["dilation"], "padding": padding, "dilation": a["stride"], "groups": a["groups"]}
    return window, (size[0], size[1])


def lower_weight_gradient(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    """Conv of x[C, N, H, W] with dy as the kernel: channels and examples change places. Groups stand beside the
    examples.
    """
    n, c, h, w = node.inputs[0].type.shape
    groups, kernel = node.attributes["groups"], node.attributes["kernel"]
    x = names[0]
    if groups == 1:
        x = (
            emit.op("Transpose", x, perm=[1, 0, 2, 3])
            if min(n, c) > 1
            else emit.op("Reshape", x, emit.integers((c, n, h, w)))
        )
    else:
        split = emit.op("Reshape", x, emit.integers((n, groups, c // groups, h * w)))
        x = emit.op(
            "Reshape", emit.op("Transpose", split, perm=[2, 1, 0, 3]), emit.integers((c // groups, groups * n, h, w))
        )
    dy = emit.op("Transpose", names[1], perm=[1, 0, 2, 3])
    window, size = swapped(node)
    out = emit.op("Conv", x, dy, group=groups, **_window_attributes(window))
    if size != kernel:
        out = emit.op("Slice", out, emit.integers((0, 0)), emit.integers(kernel), emit.integers((2, 3)))
    return emit.op("Transpose", out, perm=[1, 0, 2, 3])
