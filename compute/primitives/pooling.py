"""Pooling over images [N, C, H, W], and nearest-neighbour enlargement, its counterpart.

No gradient reads MaxPool's Indices, which some providers accept and then fail on. Where windows do not overlap, the
mask of maxima is found by enlarging the result; where they do, one-hot kernels lay the elements of each window side by
side.
"""

from collections.abc import Sequence

import numpy as np

from coterie.compute.array_type import Array, bind
from coterie.compute.ir import NDArray, Node, Type
from coterie.compute.primitives import batch, facts, rules
from coterie.compute.primitives.row import Call, Emitter, per_input, single
from coterie.errors import ShapeError

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]
NO_PADDING: Padding = ((0, 0), (0, 0))


def _pool_infer(x: Type, *, kernel: Pair, stride: Pair, padding: Padding = NO_PADDING) -> Type:
    rules.require_float(x)
    rules.require_rank(x, 4, "images [N, C, H, W]")
    if min(*kernel, *stride) < 1 or any(not 0 <= p < kernel[i] for i in (0, 1) for p in padding[i]):
        raise ShapeError(
            f"kernel {kernel}, stride {stride} and padding {padding} do not make windows.",
            hint="Sizes are at least 1; padding is below the kernel.",
        )
    sizes = [x.shape[2 + i] + sum(padding[i]) for i in (0, 1)]
    if any(size < kernel[i] for i, size in enumerate(sizes)):
        raise ShapeError(
            f"a window of {kernel} does not fit into {x} with padding {padding}.", hint="Shrink the window."
        )
    return Type(x.dtype, (*x.shape[:2], *((sizes[i] - kernel[i]) // stride[i] + 1 for i in (0, 1))))


def _windows(x: NDArray, kernel: Pair, stride: Pair) -> NDArray:
    """[N, C, OH, OW, kh, kw], without copying."""
    return np.lib.stride_tricks.sliding_window_view(x, kernel, axis=(2, 3))[:, :, :: stride[0], :: stride[1]]


def _max_pool(x: NDArray, *, kernel: Pair, stride: Pair, padding: Padding) -> NDArray:
    return _windows(np.pad(x, ((0, 0), (0, 0), *padding), constant_values=-np.inf), kernel, stride).max(axis=(4, 5))


def _average_pool(x: NDArray, *, kernel: Pair, stride: Pair) -> NDArray:
    return _windows(x, kernel, stride).mean(axis=(4, 5), dtype=x.dtype)


def _tiled(x: Array, y: Array, kernel: Pair) -> tuple[Array, Pair]:
    """The part of the image that non-overlapping windows cover, and what they leave over."""
    covered = (y.shape[2] * kernel[0], y.shape[3] * kernel[1])
    rest = (x.shape[2] - covered[0], x.shape[3] - covered[1])
    part = x if rest == (0, 0) else bind("slice", x, starts=(0, 0, 0, 0), stops=(*x.shape[:2], *covered))
    return part, rest


def _restore(g: Array, rest: Pair) -> Array:
    return g if rest == (0, 0) else bind("pad", g, before=(0, 0, 0, 0), after=(0, 0, *rest), value=0.0)


def _pool(x: Array, kernel: Pair) -> Array:
    return bind("average_pool", x, kernel=kernel, stride=kernel)


def _enlarge(x: Array, factors: Pair) -> Array:
    return bind("enlarge", x, factors=factors)


def _max_gradient(call: Call, g: Array) -> Array:
    x, y = call.inputs[0], call.output
    kernel, stride, padding = (call.attributes[name] for name in ("kernel", "stride", "padding"))
    if kernel != stride or padding != NO_PADDING:
        return _max_gradient_overlapping(x, y, g, kernel, stride, padding)
    part, rest = _tiled(x, y, kernel)
    mask = rules.equal_mask(part, _enlarge(y, kernel), x.type.dtype)
    count = _pool(mask, kernel) * float(kernel[0] * kernel[1])  # several greatest share the gradient
    return _restore(mask * _enlarge(g / count, kernel), rest)


def _max_gradient_overlapping(x: Array, y: Array, g: Array, kernel: Pair, stride: Pair, padding: Padding) -> Array:
    n, c, h, w = x.shape
    (top, bottom), (left, right) = padding
    # Lowest finite number and not -inf, because 0 * -inf is NaN in the product with a one-hot kernel.
    lowest = float(np.finfo(x.dtype).min)
    padded = (
        x
        if padding == NO_PADDING
        else bind("pad", x, before=(0, 0, top, left), after=(0, 0, bottom, right), value=lowest)
    )
    size = (padded.shape[2], padded.shape[3])
    count = kernel[0] * kernel[1]
    one_hot = Array(np.eye(count, dtype=x.dtype).reshape(count, 1, *kernel))
    window = {"stride": stride, "padding": NO_PADDING, "dilation": (1, 1), "groups": 1}
    elements = bind("conv", rules.reshape(padded, (n * c, 1, *size)), one_hot, **window)
    rows = (n * c, 1, *y.shape[2:])
    mask = rules.equal_mask(elements, rules.reshape(y, rows), x.type.dtype)
    shares = mask * (rules.reshape(g, rows) / rules.sum_over(mask, (1,), keepdims=True))
    back = rules.reshape(bind("conv_input_gradient", shares, one_hot, size=size, **window), (n, c, *size))
    return (
        back
        if padding == NO_PADDING
        else bind("slice", back, starts=(0, 0, top, left), stops=(n, c, top + h, left + w))
    )


def _average_gradient(call: Call, g: Array) -> Array:
    x, y = call.inputs[0], call.output
    kernel, stride = call.attributes["kernel"], call.attributes["stride"]
    share = 1.0 / (kernel[0] * kernel[1])
    if kernel == stride:
        _, rest = _tiled(x, y, kernel)
        return _restore(_enlarge(g * share, kernel), rest)
    n, c, h, w = x.shape
    weight = Array(np.full((1, 1, *kernel), share, x.dtype))
    folded = rules.reshape(g, (n * c, 1, *y.shape[2:]))
    window = {"stride": stride, "padding": NO_PADDING, "dilation": (1, 1), "groups": 1}
    return rules.reshape(bind("conv_input_gradient", folded, weight, size=(h, w), **window), x.shape)


def _enlarge_infer(x: Type, *, factors: Pair) -> Type:
    rules.require_float(x)
    rules.require_rank(x, 4, "images [N, C, H, W]")
    if min(factors) < 1:
        raise ShapeError(f"cannot enlarge by {factors}.", hint="Factors are at least 1.")
    return Type(x.dtype, (*x.shape[:2], x.shape[2] * factors[0], x.shape[3] * factors[1]))


def _enlarged(x: NDArray, *, factors: Pair) -> NDArray:
    return x.repeat(factors[0], axis=2).repeat(factors[1], axis=3)


def _enlarge_gradient(call: Call, g: Array) -> Array:
    factors = call.attributes["factors"]
    return _pool(g, factors) * float(factors[0] * factors[1])


def _max_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    (top, bottom), (left, right) = node.attributes["padding"]
    kernel, stride = node.attributes["kernel"], node.attributes["stride"]
    return emit.op(
        "MaxPool", names[0], kernel_shape=list(kernel), strides=list(stride), pads=[top, left, bottom, right]
    )


def _average_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    return emit.op(
        "AveragePool", names[0], kernel_shape=list(node.attributes["kernel"]), strides=list(node.attributes["stride"])
    )


def _enlarge_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    scales = emit.constant(np.asarray((1, 1, *node.attributes["factors"]), np.float32))
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return emit.op("Resize", names[0], "", scales, **how)


ROWS = (
    single(
        name="max_pool",
        infer=_pool_infer,
        evaluate=_max_pool,
        gradient=per_input(_max_gradient),
        batch=batch.images,
        lower=_max_lower,
        facts=facts.computing(
            category="nn",
            flops=facts.pooled,
            cheap=False,
            zero="no",
            nonnegative=False,
            half="follows",
            derivative=False,
        ),
    ),
    single(
        name="average_pool",
        infer=_pool_infer,
        evaluate=_average_pool,
        gradient=per_input(_average_gradient),
        batch=batch.images,
        lower=_average_lower,
        facts=facts.computing(
            category="nn",
            flops=facts.pooled,
            cheap=False,
            zero="all",
            nonnegative=False,
            half="follows",
            derivative=False,
        ),
    ),
    single(
        name="enlarge",
        infer=_enlarge_infer,
        evaluate=_enlarged,
        gradient=per_input(_enlarge_gradient),
        batch=batch.images,
        lower=_enlarge_lower,
        facts=facts.moving(category="nn", view=False, cheap=False, zero="all", half="follows", rounds=True, folds=True),
    ),
)
