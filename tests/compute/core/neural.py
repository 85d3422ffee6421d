"""Neural functions beside plain NumPy: what test_functions holds the functions of coterie.compute.ops against."""

# The table holds small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Iterator
from itertools import product
from math import erf
from typing import Any

import numpy as np

from coterie.compute import ops
from coterie.compute.ir import NDArray
from tests.compute.core.cases import spread
from tests.compute.core.functions import Function

Pair = tuple[int, int]
X, IDS = spread(3, 4), np.asarray([2, 0, 2], np.int32)
IMAGE = spread(2, 4, 6, 5)


def places(size: Pair, kernel: Pair, stride: Pair, dilation: Pair) -> Iterator[tuple[Pair, tuple[slice, slice]]]:
    """Every place of the kernel in an image, and the elements that it meets there."""
    reach = [dilation[i] * (kernel[i] - 1) + 1 for i in (0, 1)]
    counts = [(size[i] - reach[i]) // stride[i] + 1 for i in (0, 1)]
    for i, j in product(range(counts[0]), range(counts[1])):
        top, left = i * stride[0], j * stride[1]
        yield (i, j), (slice(top, top + reach[0], dilation[0]), slice(left, left + reach[1], dilation[1]))


def conv(
    x: NDArray,
    w: NDArray,
    bias: Any = 0.0,
    stride: Pair = (1, 1),
    pads: Any = ((0, 0), (0, 0)),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> NDArray:
    """Place by place, group by group."""
    image = np.pad(x, ((0, 0), (0, 0), *pads))
    found = list(places(image.shape[2:], w.shape[2:], stride, dilation))
    out = np.zeros((x.shape[0], w.shape[0], *(n + 1 for n in found[-1][0])))
    ins, outs = w.shape[1], w.shape[0] // groups
    for (i, j), (rows, columns) in found:
        for g in range(groups):
            window, weights = image[:, g * ins : (g + 1) * ins, rows, columns], w[g * outs : (g + 1) * outs]
            out[:, g * outs : (g + 1) * outs, i, j] = np.einsum("nchw,ochw->no", window, weights)
    return out + np.reshape(bias, (-1, 1, 1))


def conv_transpose(
    x: NDArray, w: NDArray, bias: Any, stride: Pair, padding: Pair, extra: Pair, dilation: Pair, groups: int
) -> NDArray:
    """Every element of x lays the kernel, times itself, over the result."""
    kernel: Pair = w.shape[2:]
    full = [(x.shape[2 + i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1 + extra[i] for i in (0, 1)]
    out = np.zeros((x.shape[0], w.shape[1] * groups, *full))
    ins, outs = x.shape[1] // groups, w.shape[1]
    for (i, j), (rows, columns) in places((full[0], full[1]), kernel, stride, dilation):
        if i < x.shape[2] and j < x.shape[3]:
            for g in range(groups):
                weights = w[g * ins : (g + 1) * ins]
                laid = np.einsum("nc,cohw->nohw", x[:, g * ins : (g + 1) * ins, i, j], weights)
                out[:, g * outs : (g + 1) * outs, rows, columns] += laid
    (top, left), (height, width) = padding, full
    return out[:, :, top : height - top, left : width - left] + np.reshape(bias, (-1, 1, 1))


def pool(x: NDArray, kernel: Pair, stride: Pair, pads: Any, value: float, how: Any) -> NDArray:
    image = np.pad(x, ((0, 0), (0, 0), *pads), constant_values=value)
    found = list(places(image.shape[2:], kernel, stride, (1, 1)))
    out = np.zeros((*x.shape[:2], *(n + 1 for n in found[-1][0])))
    for (i, j), (rows, columns) in found:
        out[:, :, i, j] = how(image[:, :, rows, columns], axis=(2, 3))
    return out


def sigmoid(x: NDArray) -> NDArray:
    return 1 / (1 + np.exp(-x))


def softmax(x: NDArray, axis: int = -1) -> NDArray:
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


ALL_AT_ONCE: dict[str, Any] = {"stride": (2, 1), "dilation": (1, 2), "groups": 2}
ONE_SIDED = ((1, 0), (0, 2))
UP: dict[str, Any] = {"stride": (2, 3), "padding": (1, 0), "dilation": (1, 2), "groups": 2}
NEURAL = [
    Function("relu", ops.relu, lambda x: np.maximum(x, 0), (X,)),
    Function("sigmoid", ops.sigmoid, sigmoid, (X,)),
    Function("tanh", ops.tanh, np.tanh, (X,)),
    Function("softplus", ops.softplus, lambda x: np.log1p(np.exp(x)), (X,)),
    Function("log_sigmoid", ops.log_sigmoid, lambda x: -np.log1p(np.exp(-x)), (X,)),
    Function("gelu", ops.gelu, lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), (X,)),
    Function("erf", ops.erf, np.vectorize(erf), (X,)),
    Function("softmax", lambda x: ops.softmax(x, axis=0), lambda x: softmax(x, 0), (X,)),
    Function("log_softmax", ops.log_softmax, lambda x: np.log(softmax(x)), (X,)),
    Function("logsumexp", ops.logsumexp, lambda x: np.log(np.exp(x).sum(-1)), (X,)),
    Function("one_hot", lambda i: ops.one_hot(i, 3), lambda i: np.eye(3)[i], (IDS,), False),
    Function("embedding", ops.embedding, lambda x, i: x[i], (X, IDS)),
    Function("touching_embedding", ops.touching_embedding, lambda x, i: x[i], (X, IDS)),
    Function("split", lambda x: ops.split(x, [1, 3], axis=1)[1], lambda x: x[:, 1:], (X,)),
    # No gradient passes, so finite differences say nothing.
    Function("stop_gradient", ops.stop_gradient, lambda x: x, (X,), False),
    Function("top_k", lambda x: ops.top_k(x, 2, axis=0, largest=False)[0], lambda x: np.sort(x, 0)[:2], (X,)),
    Function("top_k positions", lambda x: ops.top_k(x, 2)[1], lambda x: x.argsort(1)[:, :-3:-1], (X,), False),
    Function("scatter_add", ops.scatter_add, lambda x, i, u: x + np.eye(3)[i].T @ u, (X, IDS, spread(3, 4, seed=1))),
    Function("conv2d", ops.conv2d, conv, (IMAGE, spread(3, 4, 3, 2), spread(3))),
    Function(
        "conv2d strided, dilated, grouped, padded on one side",
        lambda x, w: ops.conv2d(x, w, padding=ONE_SIDED, **ALL_AT_ONCE),
        lambda x, w: conv(x, w, pads=ONE_SIDED, **ALL_AT_ONCE),
        (IMAGE, spread(6, 2, 3, 2)),
    ),
    Function(
        "conv2d by channel",
        lambda x, w: ops.conv2d(x, w, padding=1, groups=4),
        lambda x, w: conv(x, w, pads=((1, 1), (1, 1)), groups=4),
        (IMAGE, spread(4, 1, 3, 3)),
    ),
    Function(
        "conv1d",
        lambda x, w, b: ops.conv1d(x, w, b, stride=2, padding=(2, 1), dilation=2, groups=2),
        lambda x, w, b: conv(
            x[:, :, None], w[:, :, None], b, stride=(1, 2), pads=((0, 0), (2, 1)), dilation=(1, 2), groups=2
        )[:, :, 0],
        (spread(2, 4, 7), spread(6, 2, 3), spread(6)),
    ),
    Function(
        "conv_transpose2d",
        lambda x, w, b: ops.conv_transpose2d(x, w, b, output_padding=(1, 2), **UP),
        lambda x, w, b: conv_transpose(x, w, b, extra=(1, 2), **UP),
        (spread(2, 4, 3, 2), spread(4, 3, 3, 2), spread(6)),
    ),
    Function(
        "max_pool2d",
        lambda x: ops.max_pool2d(x - 5.0, 3, stride=2, padding=((1, 0), (1, 1))),
        lambda x: pool(x - 5.0, (3, 3), (2, 2), ((1, 0), (1, 1)), -np.inf, np.max),
        (IMAGE,),
    ),
    Function(
        "avg_pool2d",
        lambda x: ops.avg_pool2d(x, (2, 3), stride=(1, 2), padding=((1, 0), (1, 1))),
        lambda x: pool(x, (2, 3), (1, 2), ((1, 0), (1, 1)), 0.0, np.mean),
        (IMAGE,),
    ),
]
