"""Gradients of the weights of convolutions: which form is fastest is decided by sizes.

Plainly a gradient is one convolution of x with dy (``primitives.convolution_lowering``). Here it becomes products of
rows for a convolution by channel, one product with unrolled windows for one channel and little work, and a convolution
over longer rows otherwise. The measurements are of ONNX Runtime 1.31 on one x86-64 core with 512-bit vectors.
"""

from collections.abc import Sequence

from coterie.compute.ir import Graph, Node, Value
from coterie.compute.passes.rewrite import View, rewrite
from coterie.compute.passes.subgraphs import inside
from coterie.compute.passes.tune.examples_beside import widened
from coterie.compute.primitives.convolution_lowering import swapped

# The largest dilation that a gradient makes. Not a measurement but a caution: a far reach along a wide image may be
# treated badly by a processor's kernels.
_FARTHEST = 512
# Elements of the matrix of image windows up to which it pays to build it.
_UNROLLED = 1 << 20
# Columns of the padded image up to which products of whole rows pay for a convolution by channel: up to 56 columns they
# take 0.3 to 0.7 of the time of a convolution, at 112 0.6, and at 224 1.1.
_ROW = 128


def kernel_gradients(graph: Graph) -> Graph:
    """The graph with gradients of weights in their fastest forms; the same graph where there are none."""
    return rewrite(inside(kernel_gradients)(graph), _rule)


def _rule(node: Node, view: View) -> Value | None:
    if node.primitive != "conv_weight_gradient":
        return None
    (x, dy), a = node.inputs, node.attributes
    if a["kernel"] == (1, 1) and a["stride"] != (1, 1) and a["padding"] == ((0, 0), (0, 0)):
        met = _sampled(view, x, dy.type.shape[2:], a["stride"])
        plain = {**a, "stride": (1, 1)}
        made = Node(node.primitive, (met, dy), node.outputs, plain, node.source)
        return _form(made, view) or view.emit(node.primitive, met, dy, **plain)
    return _form(node, view)


def _sampled(view: View, x: Value, size: Sequence[int], stride: Sequence[int]) -> Value:
    """The elements of an image that kernels of one element meet."""
    n, c = x.type.shape[:2]
    ends = [(count - 1) * step + 1 for count, step in zip(size, stride, strict=True)]
    return view.emit("strided_slice", x, starts=(0,) * 4, stops=(n, c, *ends), steps=(1, 1, *stride))


def _form(node: Node, view: View) -> Value | None:
    """What a gradient becomes; None where the plain form is the fastest."""
    a = node.attributes
    n, c, _, w = node.inputs[0].type.shape
    made, oh, ow = node.inputs[1].type.shape[1:]
    kh, kw = a["kernel"]
    if 1 < a["groups"] == c == made and w + sum(a["padding"][1]) <= _ROW:
        return _by_channel(node, view)
    if a["dilation"] == (1, 1) and 1 < c // a["groups"] <= _FARTHEST // a["stride"][1]:
        return _channels_last(node, view)
    plain = (a["stride"], a["dilation"], a["groups"]) == ((1, 1), (1, 1), 1)
    return _unrolled(node, view) if plain and kh * kw * c * n * oh * ow <= _UNROLLED else None


def _channels_last(node: Node, view: View) -> Value:
    """dy as the kernel over x[1, N, H, W C]: examples are the channels, and channels part of the columns. 0.6 of the
    time of the plain form for 5x5 kernels, 0.4 for 3x3. Groups stand before the examples.
    """
    x, dy = node.inputs
    n, channels, h, w = x.type.shape
    made, groups, kernel = node.output.type.shape[0], node.attributes["groups"], node.attributes["kernel"]
    window, size = swapped(node)
    c = channels // groups
    if groups == 1:
        x = view.emit("transpose", x, permutation=(0, 2, 3, 1))
    else:
        split = view.emit("reshape", x, shape=(n, groups, c, h * w))
        x = view.emit("transpose", split, permutation=(1, 0, 3, 2))
    x = view.emit("reshape", x, shape=(1, groups * n, h, w * c))
    if n == 1:
        dy = view.emit("reshape", dy, shape=(made, n, *dy.type.shape[2:]))
    else:
        dy = view.emit("transpose", dy, permutation=(1, 0, 2, 3))
    out = view.emit("conv", x, dy, **widened(window, c))
    out = view.emit("reshape", out, shape=(made, *size, c))
    if size != kernel:
        out = view.emit("slice", out, starts=(0,) * 4, stops=(made, *kernel, c))
    return view.emit("transpose", out, permutation=(0, 3, 1, 2))


def _by_channel(node: Node, view: View) -> Value:
    """For each row of the kernel and each channel a product of dy [W', N H'] with the rows of x that it meets, [N H',
    W]: every column of one with every column of the other. The kernel's elements are sums along diagonals of it. Wider
    by W / kw than what is asked for, but products, where an image by channel has neither channels nor columns to share.
    """
    x, dy = node.inputs
    n, c, _, w = x.type.shape
    oh, ow = dy.type.shape[2:]
    a = node.attributes
    (kh, kw), (down, along), (rows_apart, columns_apart) = a["kernel"], a["stride"], a["dilation"]
    w += sum(a["padding"][1])
    x = _padded(view, view.emit("transpose", x, permutation=(1, 0, 2, 3)), node)
    dy = view.emit("reshape", view.emit("transpose", dy, permutation=(1, 0, 2, 3)), shape=(c, n * oh, ow))
    dy = view.emit("transpose", dy, permutation=(0, 2, 1))
    products: list[Value] = []
    for first in range(0, kh * rows_apart, rows_apart):
        stops = (c, n, first + down * (oh - 1) + 1, w)
        met = view.emit("strided_slice", x, starts=(0, 0, first, 0), stops=stops, steps=(1, 1, down, 1))
        product = view.emit("matmul", dy, view.emit("reshape", met, shape=(c, n * oh, w)))
        products.append(view.emit("reshape", product, shape=(c, 1, ow * w)))
    found = view.emit("concat", *products, axis=1) if kh > 1 else products[0]
    # Rows longer by the stride begin a step further on each: diagonals become columns.
    found = view.emit("pad", found, before=(0, 0, 0), after=(0, 0, ow * along), value=0.0)
    found = view.emit("reshape", found, shape=(c, kh, ow, w + along))
    stops = (c, kh, ow, columns_apart * (kw - 1) + 1)
    found = view.emit("strided_slice", found, starts=(0,) * 4, stops=stops, steps=(1, 1, 1, columns_apart))
    total = view.emit("sum", found, axes=(2,), keepdims=False)
    return view.emit("reshape", total, shape=node.output.type.shape)


def _unrolled(node: Node, view: View) -> Value:
    """A matrix product of dy [O, P] with the image windows [kh kw C, P] for each example, and their sum. Slices lay the
    windows side by side.
    """
    n, c = node.inputs[0].type.shape[:2]
    o, oh, ow = node.inputs[1].type.shape[1:]
    kh, kw = node.attributes["kernel"]
    x = _padded(view, node.inputs[0], node)
    # First along columns, then along rows: kh + kw slices instead of kh * kw.
    for axis, kernel, size in ((3, kw, ow), (2, kh, oh)):
        parts = [_part(view, x, axis, first, first + size) for first in range(kernel)]
        x = view.emit("concat", *parts, axis=1) if kernel > 1 else parts[0]
    windows = view.emit("reshape", x, shape=(n, kh * kw * c, oh * ow))
    dy = view.emit("reshape", node.inputs[1], shape=(n, o, oh * ow))
    product = view.emit("matmul", dy, view.emit("transpose", windows, permutation=(0, 2, 1)))
    total = view.emit("sum", product, axes=(0,), keepdims=False)
    return view.emit("transpose", view.emit("reshape", total, shape=(o, kh, kw, c)), permutation=(0, 3, 1, 2))


def _padded(view: View, x: Value, node: Node) -> Value:
    """[., ., H, W] with the window's padding."""
    before, after = ((0, 0, *sides) for sides in zip(*node.attributes["padding"], strict=True))
    return view.emit("pad", x, before=before, after=after, value=0.0) if any((*before, *after)) else x


def _part(view: View, x: Value, axis: int, start: int, stop: int) -> Value:
    starts, stops = [0] * x.type.rank, list(x.type.shape)
    starts[axis], stops[axis] = start, stop
    return view.emit("slice", x, starts=tuple(starts), stops=tuple(stops))
