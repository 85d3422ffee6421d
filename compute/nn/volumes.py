"""Convolution and pools along three axes: volumes [B, C, D, H, W] are computed as stacks of images."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.nn.initialisers import fan_in_uniform
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import (
    Module,
    Parameters,
    ParameterSpec,
    check_groups,
    check_input,
    check_sizes,
    refuse_shape,
    require,
)

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Conv3d(Module):
    """x[B, inputs, D, H, W] → [B, outputs, D', H', W'], D' = (D + 2 padding - dilation (kernel - 1) - 1) // stride + 1;
    the same for H' and W'.

    weight [outputs, inputs/groups, kd, kh, kw] and bias [outputs], both uniform in ±1/sqrt(inputs/groups kd kh kw), as
    in PyTorch. It is a cross-correlation: the kernel is not flipped. kernel, stride, padding and dilation are one
    number, or (depth, height, width). It is computed as one convolution of images whose channels are the kd slices
    that a kernel sees: each slice is copied as often as kernels see it.
    """

    inputs: int
    outputs: int
    kernel: int | Triple
    stride: int | Triple = 1
    padding: int | Triple = 0
    dilation: int | Triple = 1
    groups: int = 1
    bias: bool = True

    def __post_init__(self) -> None:
        check_groups(self, self.inputs, self.outputs, self.groups)
        check_sizes(self, 3, 1, kernel=self.kernel, stride=self.stride, dilation=self.dilation)
        check_sizes(self, 3, 0, padding=self.padding)

    def specs(self) -> dict[str, ParameterSpec]:
        channels, kernel = self.inputs // self.groups, _triple(self.kernel)
        init = fan_in_uniform(channels * prod(kernel))
        weight = {"weight": ParameterSpec((self.outputs, channels, *kernel), init)}
        return weight | {"bias": ParameterSpec((self.outputs,), init)} if self.bias else weight

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", self.inputs, "D", "H", "W"), self)
        kernel, stride, padding, apart = (
            _triple(value) for value in (self.kernel, self.stride, self.padding, self.dilation)
        )
        span = apart[0] * (kernel[0] - 1) + 1
        depth = (x.shape[2] + 2 * padding[0] - span) // stride[0] + 1
        if depth < 1:
            hint = "Enlarge the volume or the padding, or shrink the kernel."
            refuse_shape(self, f"volumes of a depth of at least {span - 2 * padding[0]}", x, hint=hint)
        sides = (padding[0], padding[0])
        padded = xp.pad(x, ((0, 0), (0, 0), sides, (0, 0), (0, 0))) if padding[0] else x
        # Slice k of the window of each depth: positions k dilation, k dilation + stride, …
        slices = [
            padded[:, :, at * apart[0] : at * apart[0] + (depth - 1) * stride[0] + 1 : stride[0]]
            for at in range(kernel[0])
        ]
        windows = xp.permute_dims(xp.stack(slices, axis=2), (0, 3, 1, 2, 4, 5))
        images = xp.reshape(windows, (x.shape[0] * depth, self.inputs * kernel[0], *x.shape[3:]))
        weight = require(params, "weight", self)
        made = ops.conv2d(
            images,
            xp.reshape(weight, (self.outputs, -1, *kernel[1:])),
            require(params, "bias", self) if self.bias else None,
            stride=stride[1:],
            padding=padding[1:],
            dilation=apart[1:],
            groups=self.groups,
        )
        return xp.permute_dims(xp.reshape(made, (x.shape[0], depth, *made.shape[1:])), (0, 2, 1, 3, 4))


@dataclass(frozen=True)
class MaxPool3d(Module):
    """x[B, C, D, H, W] → the largest of each window, [B, C, D', H', W'], D' = (D + 2 padding - kernel) // stride + 1;
    the same for H' and W'.

    kernel, stride and padding are one number, or (depth, height, width); stride is the kernel unless given. Padding
    never wins. A tie shares the gradient, first among slices, then within each.
    """

    kernel: int | Triple
    stride: int | Triple | None = None
    padding: int | Triple = 0

    def __post_init__(self) -> None:
        _check_window(self)

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return _pooled(self, x, ops.max_pool2d)


@dataclass(frozen=True)
class AvgPool3d(Module):
    """x[B, C, D, H, W] → the mean of each window, [B, C, D', H', W']; sizes as in :class:`MaxPool3d`. Padding is of
    zeros, and they count, as in PyTorch.
    """

    kernel: int | Triple
    stride: int | Triple | None = None
    padding: int | Triple = 0

    def __post_init__(self) -> None:
        _check_window(self)

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return _pooled(self, x, ops.avg_pool2d)


@dataclass(frozen=True)
class AdaptiveAvgPool3d(Module):
    """x[B, C, D, H, W] → the mean of each of depth by height by width equal windows: of the whole volume for 1, the
    default. The windows must be whole: D, H and W are multiples of them.

    size: one number, or (depth, height, width).
    """

    size: int | Triple = 1

    def __post_init__(self) -> None:
        check_sizes(self, 3, 1, size=self.size)

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", "C", "D", "H", "W"), self)
        size = _triple(self.size)
        if any(whole % part for whole, part in zip(x.shape[2:], size, strict=True)):
            hint = "Take a size that divides the volume's depth, height and width."
            refuse_shape(self, f"volumes of whole multiples of {' by '.join(map(str, size))}", x, hint=hint)
        if size == (1, 1, 1):
            return xp.mean(x, axis=(2, 3, 4), keepdims=True)
        window = (x.shape[2] // size[0], x.shape[3] // size[1], x.shape[4] // size[2])
        return _pooled(AvgPool3d(window), x, ops.avg_pool2d)


def _pooled(layer: MaxPool3d | AvgPool3d, x: Array, pool: Callable[..., Array]) -> Array:
    """Windows of images first, then of what they left along the depth: greatest elements and means allow it."""
    check_input(x, ("B", "C", "D", "H", "W"), layer)
    kernel, padding = _triple(layer.kernel), _triple(layer.padding)
    stride = kernel if layer.stride is None else _triple(layer.stride)
    count, channels, depth, *sizes = x.shape
    flat = pool(xp.reshape(x, (count, channels * depth, *sizes)), kernel[1:], stride=stride[1:], padding=padding[1:])
    rows, columns = flat.shape[2:]
    deep = xp.reshape(flat, (count, channels, depth, rows * columns))
    done = pool(deep, (kernel[0], 1), stride=(stride[0], 1), padding=(padding[0], 0))
    return xp.reshape(done, (count, channels, done.shape[2], rows, columns))


def _check_window(layer: MaxPool3d | AvgPool3d) -> None:
    check_sizes(layer, 3, 1, kernel=layer.kernel, stride=layer.kernel if layer.stride is None else layer.stride)
    check_sizes(layer, 3, 0, padding=layer.padding)


def _triple(value: int | Triple) -> Triple:
    """(depth, height, width) from one number for all or from three."""
    return (value, value, value) if isinstance(value, int) else value
