"""Convolution over images [N, C, H, W] and its two transposes. The three are closed under differentiation, because each
is linear in both operands.

All share the attributes stride (rows, columns), padding ((top, bottom), (left, right)), dilation (rows, columns) and
groups; weights are [O, C / groups, kh, kw].
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from coterie.compute.array_type import Array, bind
from coterie.compute.ir import NDArray, Node, Type, Value
from coterie.compute.primitives import batch_convolution, facts, rules
from coterie.compute.primitives.convolution_lowering import lower_conv, lower_input_gradient, lower_weight_gradient
from coterie.compute.primitives.row import Call, per_input, single
from coterie.errors import ShapeError

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]


def _positions(size: int, kernel: int, stride: int, padding: Pair, dilation: int) -> int:
    """How many places a kernel takes along one axis. Raises ShapeError when it does not fit once."""
    span = dilation * (kernel - 1) + 1
    if min(size, kernel, stride, dilation) < 1 or min(padding) < 0 or size + sum(padding) < span:
        raise ShapeError(
            f"a kernel of {kernel} (dilation {dilation}, stride {stride}) does not fit into {size} elements "
            f"with padding {padding}.",
            hint="Enlarge the image or the padding, or shrink the kernel.",
        )
    return (size + sum(padding) - span) // stride + 1


def _output_size(size: Sequence[int], kernel: Sequence[int], stride: Pair, padding: Padding, dilation: Pair) -> Pair:
    height, width = (_positions(size[i], kernel[i], stride[i], padding[i], dilation[i]) for i in (0, 1))
    return height, width


def _check_channels(image: int, weight: Type, groups: int) -> None:
    if groups < 1 or image != weight.shape[1] * groups or weight.shape[0] % groups:
        raise ShapeError(
            f"{image} image channels do not fit weights {weight} in {groups} groups.",
            hint=f"Weights are [outputs, {image} / groups, rows, columns]; groups divide both channel counts.",
        )


def _conv_infer(
    x: Type, w: Type, bias: Type | None = None, *, stride: Pair, padding: Padding, dilation: Pair, groups: int
) -> Type:
    rules.require_float(x)
    dtype = rules.same_dtype(x, w)
    rules.require_rank(x, 4, "images [N, C, H, W]")
    rules.require_rank(w, 4, "weights [O, C / groups, kh, kw]")
    _check_channels(x.shape[1], w, groups)
    if bias is not None and (rules.same_dtype(x, bias), bias.shape) != (dtype, (w.shape[0],)):
        raise ShapeError(
            f"the bias {bias} is not one number for each of {w.shape[0]} output channels.",
            hint=f"Reshape it to [{w.shape[0]}].",
        )
    return Type(dtype, (x.shape[0], w.shape[0], *_output_size(x.shape[2:], w.shape[2:], stride, padding, dilation)))


def _input_infer(g: Type, w: Type, *, size: Pair, stride: Pair, padding: Padding, dilation: Pair, groups: int) -> Type:
    rules.require_rank(g, 4, "images [N, O, H, W]")
    rules.require_rank(w, 4, "weights [O, C / groups, kh, kw]")
    x = Type(g.dtype, (g.shape[0], w.shape[1] * groups, *size))
    _check_image(_conv_infer(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups), g)
    return x


def _weight_infer(
    x: Type, g: Type, *, kernel: Pair, stride: Pair, padding: Padding, dilation: Pair, groups: int
) -> Type:
    rules.require_rank(x, 4, "images [N, C, H, W]")
    rules.require_rank(g, 4, "images [N, O, H, W]")
    w = Type(x.dtype, (g.shape[1], x.shape[1] // max(groups, 1), *kernel))
    _check_image(_conv_infer(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups), g)
    return w


def _check_image(expected: Type, found: Type) -> None:
    if expected != found:
        raise ShapeError(
            f"the cotangent is {found}, and the convolution makes {expected}.",
            hint="Pass the shape that the convolution has.",
        )


def _windows(
    size: Pair, kernel: Sequence[int], stride: Pair, dilation: Pair
) -> "Iterator[tuple[int, int, tuple[Any, ...]]]":
    """For each kernel element: its place, and the index of the image elements that it meets, one for each output."""
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            rows = slice(i * dilation[0], i * dilation[0] + stride[0] * (size[0] - 1) + 1, stride[0])
            columns = slice(j * dilation[1], j * dilation[1] + stride[1] * (size[1] - 1) + 1, stride[1])
            yield i, j, (..., rows, columns)


def _grouped(x: NDArray, groups: int) -> NDArray:
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, -1)


def _padded(x: NDArray, padding: Padding) -> NDArray:
    return np.pad(x, ((0, 0), (0, 0), *padding))


def _conv(
    x: NDArray, w: NDArray, bias: NDArray | None = None, *, stride: Pair, padding: Padding, dilation: Pair, groups: int
) -> NDArray:
    size = _output_size(x.shape[2:], w.shape[2:], stride, padding, dilation)
    padded, weights = _padded(x, padding), w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    out = np.zeros((x.shape[0], groups, w.shape[0] // groups, size[0] * size[1]), x.dtype)
    for i, j, window in _windows(size, w.shape[2:], stride, dilation):
        out += weights[:, :, :, i, j] @ _grouped(padded[window], groups)
    result = out.reshape(x.shape[0], w.shape[0], *size)
    return result if bias is None else result + bias.reshape(-1, 1, 1)


def _input_gradient(
    g: NDArray, w: NDArray, *, size: Pair, stride: Pair, padding: Padding, dilation: Pair, groups: int
) -> NDArray:
    (top, bottom), (left, right) = padding
    padded = np.zeros((g.shape[0], w.shape[1] * groups, size[0] + top + bottom, size[1] + left + right), g.dtype)
    weights, cotangent = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]), _grouped(g, groups)
    for i, j, window in _windows((g.shape[2], g.shape[3]), w.shape[2:], stride, dilation):
        padded[window] += (weights[:, :, :, i, j].swapaxes(1, 2) @ cotangent).reshape(g.shape[0], -1, *g.shape[2:])
    return padded[:, :, top : top + size[0], left : left + size[1]]


def _weight_gradient(
    x: NDArray, g: NDArray, *, kernel: Pair, stride: Pair, padding: Padding, dilation: Pair, groups: int
) -> NDArray:
    padded, cotangent = _padded(x, padding), _grouped(g, groups)
    out = np.zeros((groups, g.shape[1] // groups, x.shape[1] // groups, *kernel), x.dtype)
    for i, j, window in _windows((g.shape[2], g.shape[3]), kernel, stride, dilation):
        out[:, :, :, i, j] = (cotangent @ _grouped(padded[window], groups).swapaxes(2, 3)).sum(axis=0)
    return out.reshape(g.shape[1], x.shape[1] // groups, *kernel)


def _shared(call: Call) -> dict[str, Any]:
    return {name: call.attributes[name] for name in ("stride", "padding", "dilation", "groups")}


def _to_input(call: Call, g: Array, w: Array, like: Array) -> Array:
    return bind("conv_input_gradient", g, w, size=like.shape[2:], **_shared(call))


def _to_weight(call: Call, x: Array, g: Array, like: Array) -> Array:
    return bind("conv_weight_gradient", x, g, kernel=like.shape[2:], **_shared(call))


def _forward(call: Call, x: Array, w: Array) -> Array:
    return bind("conv", x, w, **_shared(call))


def _made(node: Node) -> Value:
    return node.output


def _first(node: Node) -> Value:
    return node.inputs[0]


def _second(node: Node) -> Value:
    return node.inputs[1]


def _facts(image: Callable[[Node], Value]) -> facts.Facts:
    """Of a product with the weight. image: what has an element for each window."""
    return facts.computing(
        category="nn",
        flops=facts.window(image, _second),
        cheap=False,
        zero="any",
        nonnegative=False,
        half="begins",
        derivative=False,
    )


ROWS = (
    single(
        name="conv",
        infer=_conv_infer,
        evaluate=_conv,
        gradient=per_input(
            lambda call, g: _to_input(call, g, call.inputs[1], call.inputs[0]),
            lambda call, g: _to_weight(call, call.inputs[0], g, call.inputs[1]),
            lambda call, g: rules.sum_over(g, (0, 2, 3)),
        ),
        batch=batch_convolution.product,
        lower=lower_conv,
        facts=_facts(_made),
    ),
    single(
        name="conv_input_gradient",
        infer=_input_infer,
        evaluate=_input_gradient,
        gradient=per_input(
            lambda call, g: _forward(call, g, call.inputs[1]),
            lambda call, g: _to_weight(call, g, call.inputs[0], call.inputs[1]),
        ),
        batch=batch_convolution.product,
        lower=lower_input_gradient,
        facts=_facts(_first),
    ),
    single(
        name="conv_weight_gradient",
        infer=_weight_infer,
        evaluate=_weight_gradient,
        gradient=per_input(
            lambda call, g: _to_input(call, call.inputs[1], g, call.inputs[0]),
            lambda call, g: _forward(call, call.inputs[0], g),
        ),
        batch=batch_convolution.weight_gradient,
        lower=lower_weight_gradient,
        facts=facts.computing(
            category="nn",
            flops=facts.window(_second, _made),
            cheap=False,
            zero="any",
            nonnegative=False,
            half="single",
            derivative=True,
        ),
    ),
)
