"""ONNX forms of the three convolution primitives. There are several for each; the choice is by sizes alone, so a graph
has one file.

What decides on a CPU is how a runtime lays out image windows as a matrix: row by row, so long rows cost less than short
ones, and one large product costs less than one for each example. So short rows are lengthened: the examples of a batch,
or the channels, become part of the columns, and a dilation of their number keeps the kernel's elements on theirs.
The measurements in the comments are of ONNX Runtime 1.31 on one x86-64 core with 512-bit vectors.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.compute.ir import Attributes, Node, Type, Value
from coterie.compute.primitives.row import Emitter

# Columns of the result below which examples are interleaved into them: at 14 columns and fewer this takes 0.6 to 0.95
# of the time, at 16 it makes no difference, from 28 on it is slower.
_NARROW = 16
# How many examples: at least the first number, where it begins to pay, and at most the second; more gain nothing.
_BESIDE = (4, 8)
# Columns that they may make together in the gradient of the input, whose matrix of windows is written and read again
# and would leave the cache.
_TOGETHER = 64
# The largest dilation that the gradient of weights makes. Not a measurement but a caution: providers for other
# processors may treat a far reach along a wide image badly.
_FARTHEST = 512
# Elements of the matrix of image windows up to which it pays to build it for the gradient of weights.
_UNROLLED = 1 << 20
# Columns of the padded image up to which products of whole rows pay for the gradient of weights by channel: up to 56
# columns they take 0.3 to 0.7 of the time of a convolution, at 112 0.6, and at 224 1.1.
_ROW = 128


def _window_attributes(attributes: Attributes) -> dict[str, Any]:
    (top, bottom), (left, right) = attributes["padding"]
    return {
        "strides": list(attributes["stride"]),
        "pads": [top, left, bottom, right],
        "dilations": list(attributes["dilation"]),
    }


def _widened(window: dict[str, Any], columns: int) -> dict[str, Any]:
    """The same window over an image in which ``columns`` neighbours stand for each column."""
    top, left, bottom, right = window["pads"]
    rows_apart, columns_apart = window["dilations"]
    return window | {
        "pads": [top, left * columns, bottom, right * columns],
        "dilations": [rows_apart, columns_apart * columns],
    }


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


def _interleaved(emit: Emitter, operator: str, node: Node, names: Sequence[str], beside: int) -> str:
    """[N, C, H, W] → [N / beside, C, H, W beside], the operator, and back."""
    n, c, h, w = node.inputs[0].type.shape
    _, made, height, width = node.output.type.shape
    n //= beside
    x = emit.op("Reshape", names[0], emit.integers((n, beside, c, h * w)))
    x = emit.op("Reshape", emit.op("Transpose", x, perm=[0, 2, 3, 1]), emit.integers((n, c, h, w * beside)))
    window = _widened(_window_attributes(node.attributes), beside)
    out = emit.op(operator, x, *names[1:], group=node.attributes["groups"], **window)
    out = emit.op("Reshape", out, emit.integers((n, made, height * width, beside)))
    return emit.op("Reshape", emit.op("Transpose", out, perm=[0, 3, 1, 2]), emit.integers(node.output.type.shape))


def lower_conv(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    """Conv, with examples beside each other where rows are short; not for constant weights, which runtimes lay out anew
    for a plain Conv, and quantisers and accelerators look for there.
    """
    if not emit.fixed(names[1]) and (beside := _beside(node, _BESIDE[1])) > 1:
        return _interleaved(emit, "Conv", node, names, beside)
    return emit.op("Conv", *names, group=node.attributes["groups"], **_window_attributes(node.attributes))


def lower_input_gradient(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    """ConvTranspose, with examples beside each other where rows are short."""
    most = min(_BESIDE[1], _TOGETHER // node.inputs[0].type.shape[3])
    if (beside := _beside(node, most)) > 1:
        return _interleaved(emit, "ConvTranspose", node, names, beside)
    g, w = (value.type.shape for value in node.inputs)
    a = node.attributes
    # The rows and columns that a stride > 1 left over at the end of the image.
    rest = [
        a["size"][i] - ((g[2 + i] - 1) * a["stride"][i] - sum(a["padding"][i]) + a["dilation"][i] * (w[2 + i] - 1) + 1)
        for i in (0, 1)
    ]
    return emit.op("ConvTranspose", *names, group=a["groups"], output_padding=rest, **_window_attributes(a))


def lower_weight_gradient(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    """Products of rows for a convolution by channel, one product with unrolled windows for one channel and little work,
    otherwise a convolution of x with dy.
    """
    node, names = _sampled(emit, node, names)
    a = node.attributes
    n, c = node.inputs[0].type.shape[:2]
    made, oh, ow = node.inputs[1].type.shape[1:]
    kh, kw = a["kernel"]
    if 1 < a["groups"] == c == made and node.inputs[0].type.shape[3] + sum(a["padding"][1]) <= _ROW:
        return _weight_by_channel(emit, node, names)
    if a["dilation"] == (1, 1) and 1 < c // a["groups"] <= _FARTHEST // a["stride"][1]:
        return _channels_last_weight(emit, node, names)
    plain = (a["stride"], a["dilation"], a["groups"]) == ((1, 1), (1, 1), 1)
    if plain and kh * kw * c * n * oh * ow <= _UNROLLED:
        return _unrolled_weight(emit, node, names)
    return _swapped_weight(emit, node, names)


def _sampled(emit: Emitter, node: Node, names: Sequence[str]) -> tuple[Node, Sequence[str]]:
    """A gradient for kernels of one element of the image's elements that they meet, without a stride."""
    (x, dy), a = node.inputs, node.attributes
    if a["kernel"] != (1, 1) or a["stride"] == (1, 1) or a["padding"] != ((0, 0), (0, 0)):
        return node, names
    size = dy.type.shape[2:]
    ends = [(count - 1) * step + 1 for count, step in zip(size, a["stride"], strict=True)]
    met = emit.op("Slice", names[0], *map(emit.integers, ((0, 0), ends, (2, 3), a["stride"])))
    image = Value(Type(x.type.dtype, (*x.type.shape[:2], *size)))
    plain = {**a, "stride": (1, 1)}
    return Node(node.primitive, (image, dy), node.outputs, plain, node.source), (met, names[1])


def _swapped(node: Node) -> tuple[dict[str, Any], tuple[int, int]]:
    """How x is convolved with dy, and rows and columns of the result: the kernel's, and more where a stride left over
    some of the image itself. Stride and dilation change places when dy is the kernel; what a stride left over of the
    padding is left out.
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
    window = {
        "strides": list(a["dilation"]),
        "pads": [top, left, *ends],
        "dilations": list(a["stride"]),
    }
    return window, (size[0], size[1])


def _first_elements(emit: Emitter, name: str, axes: tuple[int, int], size: tuple[int, int], kernel: Any) -> str:
    """Cut what ``_swapped`` has too much."""
    if size == kernel:
        return name
    return emit.op("Slice", name, emit.integers((0, 0)), emit.integers(kernel), emit.integers(axes))


def _channels_last_weight(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    """dy as the kernel over x[1, N, H, W C]: examples are the channels, and channels part of the columns. 0.6 of the
    time of the form below for 5x5 kernels, 0.4 for 3x3. Groups stand before the examples.
    """
    n, channels, h, w = node.inputs[0].type.shape
    made, groups = node.output.type.shape[0], node.attributes["groups"]
    swapped, size = _swapped(node)
    c = channels // groups
    x = names[0]
    if groups == 1:
        x = emit.op("Transpose", x, perm=[0, 2, 3, 1])
    else:
        split = emit.op("Reshape", x, emit.integers((n, groups, c, h * w)))
        x = emit.op("Transpose", split, perm=[1, 0, 3, 2])
    x = emit.op("Reshape", x, emit.integers((1, groups * n, h, w * c)))
    window = _widened(swapped, c)
    dy = names[1] if n == 1 else emit.op("Transpose", names[1], perm=[1, 0, 2, 3])
    if n == 1:
        dy = emit.op("Reshape", dy, emit.integers((made, n, *node.inputs[1].type.shape[2:])))
    out = emit.op("Conv", x, dy, group=groups, **window)
    out = emit.op("Reshape", out, emit.integers((made, *size, c)))
    out = _first_elements(emit, out, (1, 2), size, node.attributes["kernel"])
    return emit.op("Transpose", out, perm=[0, 3, 1, 2])


def _swapped_weight(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    """dy as the kernel over x[C, N, H, W]: channels and examples change places. Groups stand beside the examples."""
    n, c, h, w = node.inputs[0].type.shape
    groups = node.attributes["groups"]
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
    window, size = _swapped(node)
    out = emit.op("Conv", x, dy, group=groups, **window)
    out = _first_elements(emit, out, (2, 3), size, node.attributes["kernel"])
    return emit.op("Transpose", out, perm=[1, 0, 2, 3])


def _weight_by_channel(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    """For each row of the kernel and each channel a product of dy [W', N H'] with the rows of x that it meets, [N H',
    W]: every column of one with every column of the other. The kernel's elements are sums along diagonals of it. Wider
    by W / kw than what is asked for, but products, where an image by channel has neither channels nor columns to share.
    """
    n, c, _, w = node.inputs[0].type.shape
    oh, ow = node.inputs[1].type.shape[2:]
    a = node.attributes
    (kh, kw), (down, along), (rows_apart, columns_apart) = a["kernel"], a["stride"], a["dilation"]
    (top, bottom), (left, right) = a["padding"]
    w += left + right
    zero = emit.constant(np.zeros((), node.output.type.dtype))
    x = emit.op("Transpose", names[0], perm=[1, 0, 2, 3])
    if (top, bottom, left, right) != (0, 0, 0, 0):
        x = emit.op("Pad", x, emit.integers((0, 0, top, left, 0, 0, bottom, right)), zero, mode="constant")
    dy = emit.op("Reshape", emit.op("Transpose", names[1], perm=[1, 0, 2, 3]), emit.integers((c, n * oh, ow)))
    dy = emit.op("Transpose", dy, perm=[0, 2, 1])
    products: list[str] = []
    for first in range(0, kh * rows_apart, rows_apart):
        steps = (first,), (first + down * (oh - 1) + 1,), (2,), (down,)
        met = emit.op("Reshape", emit.op("Slice", x, *map(emit.integers, steps)), emit.integers((c, n * oh, w)))
        products.append(emit.op("Reshape", emit.op("MatMul", dy, met), emit.integers((c, 1, ow * w))))
    found = emit.op("Concat", *products, axis=1) if kh > 1 else products[0]
    # Rows longer by the stride begin a step further on each: diagonals become columns.
    found = emit.op("Pad", found, emit.integers((0, 0, 0, 0, 0, ow * along)), zero, mode="constant")
    found = emit.op("Reshape", found, emit.integers((c, kh, ow, w + along)))
    columns = (0,), (columns_apart * (kw - 1) + 1,), (3,), (columns_apart,)
    found = emit.op("Slice", found, *map(emit.integers, columns))
    total = emit.op("ReduceSum", found, emit.integers([2]), keepdims=0)
    return emit.op("Reshape", total, emit.integers(node.output.type.shape))


def _unrolled_weight(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    """A matrix product of dy [O, P] with the image windows [kh kw C, P] for each example, and their sum. Slices lay the
    windows side by side.
    """
    n, c = node.inputs[0].type.shape[:2]
    o, oh, ow = node.inputs[1].type.shape[1:]
    kh, kw = node.attributes["kernel"]
    (top, bottom), (left, right) = node.attributes["padding"]
    x = names[0]
    if (top, bottom, left, right) != (0, 0, 0, 0):
        zero = emit.constant(np.zeros((), node.output.type.dtype))
        x = emit.op("Pad", x, emit.integers((0, 0, top, left, 0, 0, bottom, right)), zero, mode="constant")
    # First along columns, then along rows: kh + kw slices instead of kh * kw.
    for axis, kernel, size in ((3, kw, ow), (2, kh, oh)):
        parts = [
            emit.op("Slice", x, emit.integers([i]), emit.integers([i + size]), emit.integers([axis]))
            for i in range(kernel)
        ]
        x = emit.op("Concat", *parts, axis=1) if kernel > 1 else parts[0]
    windows = emit.op("Reshape", x, emit.integers((n, kh * kw * c, oh * ow)))
    dy = emit.op("Reshape", names[1], emit.integers((n, o, oh * ow)))
    product = emit.op("MatMul", dy, emit.op("Transpose", windows, perm=[0, 2, 1]))
    total = emit.op("ReduceSum", product, emit.integers([0]), keepdims=0)
    return emit.op("Transpose", emit.op("Reshape", total, emit.integers((o, kh, kw, c))), perm=[0, 3, 1, 2])
