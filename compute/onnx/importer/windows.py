"""Convolution and pooling, over one or two axes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.onnx.importer.operation import Operation, Rule

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Window:
    """A window over two axes; a graph over one axis is computed over two, of which the first has size 1."""

    kernel: Pair
    stride: Pair
    dilation: Pair
    padding: tuple[Pair, Pair]


def _image(node: Operation) -> Array:
    x = node[0]
    if x.ndim not in (3, 4):
        node.refuse(f"its input has {x.ndim} axes", "Windows over one or two axes are translated: [N, C, (H,) W].")
    return x if x.ndim == 4 else cnp.expand_dims(x, 2)


def _restored(node: Operation, y: Array) -> Array:
    return y if node[0].ndim == 4 else cnp.squeeze(y, 2)


def _window(node: Operation, kernel: Sequence[int], size: Sequence[int]) -> _Window:
    spatial = node[0].ndim - 2

    def two(values: Sequence[int], fill: int) -> Pair:
        listed = [fill] * (2 - spatial) + [int(n) for n in values]
        return listed[0], listed[1]

    listed = {name: tuple(node.option(name, (1,) * spatial)) for name in ("strides", "dilations")}
    listed["kernel_shape"] = tuple(kernel)
    if tuple(node.option("kernel_shape", kernel)) != listed["kernel_shape"]:
        listed["kernel_shape"] = ()
    pads = tuple(node.option("pads", (0,) * 2 * spatial))
    wrong = [name for name, numbers in listed.items() if len(numbers) != spatial or min(numbers) < 1]
    wrong += ["pads"] if len(pads) != 2 * spatial else []
    if wrong:
        node.refuse(
            f"its attribute {wrong[0]} does not fit {spatial} axes of windows", "The file is damaged: export it again."
        )
    window = two(kernel, 1)
    stride, dilation = two(listed["strides"], 1), two(listed["dilations"], 1)
    how = node.option("auto_pad", "NOTSET")
    spans = [dilation[i] * (window[i] - 1) + 1 for i in (0, 1)]
    if how in ("SAME_UPPER", "SAME_LOWER"):
        missing = [max((-(-size[i] // stride[i]) - 1) * stride[i] + spans[i] - size[i], 0) for i in (0, 1)]
        less, more = ([n // 2 for n in missing], [n - n // 2 for n in missing])
        before, after = (less, more) if how == "SAME_UPPER" else (more, less)
        padding = ((before[0], after[0]), (before[1], after[1]))
    elif how == "VALID":
        padding = ((0, 0), (0, 0))
    elif how != "NOTSET":
        node.refuse(f"its auto_pad is {how!r}", "The file is damaged: export it again.")
    else:
        before, after = two(pads[:spatial], 0), two(pads[spatial:], 0)
        padding = ((before[0], after[0]), (before[1], after[1]))
    if node.option("ceil_mode", 0):
        rows, columns = (_ceiled(size[i], spans[i], stride[i], padding[i]) for i in (0, 1))
        padding = ((padding[0][0], padding[0][1] + rows), (padding[1][0], padding[1][1] + columns))
    node.held(prod(node[0].shape[:2]) * prod(n + sum(more) for n, more in zip(size, padding, strict=True)))
    return _Window(window, stride, dilation, padding)


def _ceiled(size: int, span: int, stride: int, padding: Pair) -> int:
    """How much more padding lets the last, incomplete window in; one that would begin in the padding is dropped."""
    free = size + sum(padding) - span
    count = -(-free // stride)
    if count * stride >= size + padding[0]:
        count -= 1
    return max(count * stride - free, 0)


def _conv(node: Operation) -> Array:
    x, w = _image(node), node[1]
    w = w if w.ndim == 4 else cnp.expand_dims(w, 2)
    at = _window(node, w.shape[4 - (node[0].ndim - 2) :], x.shape[2:])
    y = ops.conv2d(
        x,
        w,
        node.get(2),
        stride=at.stride,
        padding=at.padding,
        dilation=at.dilation,
        groups=node.option("group", 1),
    )
    return _restored(node, y)


def _conv_transposed(node: Operation) -> Array:
    x, w = _image(node), node[1]
    w = w if w.ndim == 4 else cnp.expand_dims(w, 2)
    axes = node[0].ndim - 2
    # Here auto_pad says how the whole result is cut, which is found out below.
    sized = replace(node, attributes={**node.attributes, "auto_pad": "NOTSET"})
    at = _window(sized, w.shape[4 - axes :], x.shape[2:])
    *first, last = (int(n) for n in node.option("output_padding", (0,) * axes))
    extra = (first[0] if first else 0, last)
    spans = [d * (k - 1) + 1 for d, k in zip(at.dilation, at.kernel, strict=True)]
    whole = [(n - 1) * s + span + e for n, s, span, e in zip(x.shape[2:], at.stride, spans, extra, strict=True)]
    (top, bottom), (left, right) = _cut_off(node, at, x.shape[2:], whole)
    left_over = [n - sum(ends) for n, ends in zip(whole, ((top, bottom), (left, right)), strict=True)]
    if min(top, left, *left_over) < 0 or not all(left_over):
        node.refuse(
            f"pads {[top, left, bottom, right]} do not fit {whole} elements", "The file is damaged: export it again."
        )
    more = [max(-n, 0) for n in (bottom, right)]
    node.held(x.shape[0] * w.shape[1] * prod(n + m for n, m in zip(whole, more, strict=True)))
    # Unequal pads are cut off a result without padding.
    y = ops.conv_transpose2d(
        x,
        w,
        None if any(more) else node.get(2),
        stride=at.stride,
        output_padding=extra,
        dilation=at.dilation,
        groups=node.option("group", 1),
    )
    y = y[:, :, top : y.shape[2] - max(bottom, 0), left : y.shape[3] - max(right, 0)]
    if any(more):
        y = cnp.pad(y, ((0, 0), (0, 0), (0, more[0]), (0, more[1])))
        y = y if node.get(2) is None else y + cnp.reshape(node[2], (-1, 1, 1))
    return _restored(node, y)


def _cut_off(node: Operation, at: _Window, size: Sequence[int], whole: Sequence[int]) -> tuple[Pair, Pair]:
    """How much of a transposed convolution's whole result is cut off at both ends of its axes; below 0: so many zeros
    are put there. Given sizes are cut out of the middle, and what is odd is cut off in front, as ONNX Runtime does.
    """
    how, sizes = node.option("auto_pad", "NOTSET"), node.option("output_shape", None)
    if sizes is None and how in ("NOTSET", "VALID"):
        return at.padding if how == "NOTSET" else ((0, 0), (0, 0))
    if how not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        node.refuse(f"its auto_pad is {how!r}", "The file is damaged: export it again.")
    axes = node[0].ndim - 2
    wanted = [n * step for n, step in zip(size, at.stride, strict=True)]
    wanted = wanted if sizes is None else [1] * (2 - axes) + [int(n) for n in sizes[-axes:]]
    if len(wanted) != 2 or min(wanted) < 1:
        node.refuse(f"its output_shape {list(sizes or ())} does not fit", "Export with fixed sizes of images.")

    def ends(surplus: int) -> Pair:
        less = surplus // 2
        front = max(less if how == "SAME_UPPER" else surplus - less, 0)
        return front, surplus - front

    rows, columns = (ends(n - m) for n, m in zip(whole, wanted, strict=True))
    return rows, columns


def _max_pool(node: Operation) -> Array:
    if node.outputs > 1:
        node.refuse("the positions of its maxima are used", "Only its first output is translated.")
    x = _image(node)
    at = _window(node, node.attributes["kernel_shape"], x.shape[2:])
    if at.dilation != (1, 1):
        node.refuse("its window is dilated", "Only windows without gaps are translated.")
    return _restored(node, ops.max_pool2d(x, at.kernel, at.stride, at.padding))


def _average_pool(node: Operation) -> Array:
    x = _image(node)
    at = _window(node, node.attributes["kernel_shape"], x.shape[2:])
    if at.dilation != (1, 1):
        node.refuse("its window is dilated", "Only windows without gaps are translated.")
    if at.padding == ((0, 0), (0, 0)):
        return _restored(node, ops.avg_pool2d(x, at.kernel, at.stride))
    if node.option("ceil_mode", 0) and node.option("count_include_pad", 0):
        node.refuse("it counts padding in windows that reach over the edge", "Export with ceil_mode=0.")

    def summed(image: Array) -> Array:
        return ops.avg_pool2d(cnp.pad(image, ((0, 0), (0, 0), *at.padding)), at.kernel, at.stride)

    if node.option("count_include_pad", 0):
        return _restored(node, summed(x))
    return _restored(node, summed(x) / summed(Array(np.ones((1, 1, *x.shape[2:]), x.dtype))))


def _spatial(node: Operation) -> tuple[int, ...]:
    return tuple(range(2, node[0].ndim))


RULES: dict[str, Rule] = {
    "AveragePool": _average_pool,
    "Conv": _conv,
    "ConvTranspose": _conv_transposed,
    "GlobalAveragePool": lambda node: cnp.mean(node[0], axis=_spatial(node), keepdims=True),
    "GlobalMaxPool": lambda node: cnp.max(node[0], axis=_spatial(node), keepdims=True),
    "MaxPool": _max_pool,
}
