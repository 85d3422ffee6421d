"""Convolution and pools along one axis: sequences [B, C, L] are images of one row."""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Conv1d(Module):
    """x[B, inputs, L] → [B, outputs, L'], L' = (L + 2 padding - dilation (kernel - 1) - 1) // stride + 1.

    weight [outputs, inputs/groups, kernel] and bias [outputs], both uniform in ±1/sqrt(inputs/groups kernel), as in
    PyTorch. It is a cross-correlation: the kernel is not flipped.
    """

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    bias: bool = True

    def __post_init__(self) -> None:
        check_groups(self, self.inputs, self.outputs, self.groups)
        check_sizes(self, 1, 1, kernel=self.kernel, stride=self.stride, dilation=self.dilation)
        check_sizes(self, 1, 0, padding=self.padding)

    def specs(self) -> dict[str, ParameterSpec]:
        channels = self.inputs // self.groups
        init = fan_in_uniform(channels * self.kernel)
        weight = {"weight": ParameterSpec((self.outputs, channels, self.kernel), init)}
        return weight | {"bias": ParameterSpec((self.outputs,), init)} if self.bias else weight

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", self.inputs, "L"), self)
        return ops.conv1d(
            x,
            require(params, "weight", self),
            require(params, "bias", self) if self.bias else None,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )


@dataclass(frozen=True)
class MaxPool1d(Module):
    """x[B, C, L] → the largest of each window, [B, C, L'], L' = (L + 2 padding - kernel) // stride + 1.

    stride is the kernel unless given. Padding never wins. A tie shares the gradient in equal parts.
    """

    kernel: int
    stride: int | None = None
    padding: int = 0

    def __post_init__(self) -> None:
        _check_window(self)

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", "C", "L"), self)
        rows = xp.expand_dims(x, 2)
        stride = self.kernel if self.stride is None else self.stride
        return xp.squeeze(ops.max_pool2d(rows, (1, self.kernel), stride=(1, stride), padding=(0, self.padding)), 2)


@dataclass(frozen=True)
class AvgPool1d(Module):
    """x[B, C, L] → the mean of each window, [B, C, L'], L' = (L + 2 padding - kernel) // stride + 1. stride is the
    kernel unless given. Padding is of zeros, and they count, as in PyTorch.
    """

    kernel: int
    stride: int | None = None
    padding: int = 0

    def __post_init__(self) -> None:
        _check_window(self)

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", "C", "L"), self)
        rows = xp.expand_dims(x, 2)
        stride = self.kernel if self.stride is None else self.stride
        return xp.squeeze(ops.avg_pool2d(rows, (1, self.kernel), stride=(1, stride), padding=(0, self.padding)), 2)


@dataclass(frozen=True)
class AdaptiveAvgPool1d(Module):
    """x[B, C, L] → the mean of each of ``size`` equal windows, [B, C, size]: of the whole sequence for 1, the default.
    The windows must be whole: L is a multiple of size.
    """

    size: int = 1

    def __post_init__(self) -> None:
        check_sizes(self, 1, 1, size=self.size)

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", "C", "L"), self)
        if x.shape[2] % self.size:
            hint = "Take a size that divides the sequence's length."
            refuse_shape(self, f"sequences of whole multiples of {self.size}", x, hint=hint)
        parts = xp.reshape(x, (*x.shape[:2], self.size, x.shape[2] // self.size))
        return xp.mean(parts, axis=3)


def _check_window(layer: MaxPool1d | AvgPool1d) -> None:
    check_sizes(layer, 1, 1, kernel=layer.kernel, stride=layer.kernel if layer.stride is None else layer.stride)
    check_sizes(layer, 1, 0, padding=layer.padding)
