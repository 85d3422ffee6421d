"""Pooling layers."""

from dataclasses import dataclass

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import (
    Module,
    Parameters,
    ParameterSpec,
    check_input,
    check_padding,
    check_window,
    pair,
    refuse_shape,
)


@dataclass(frozen=True)
class MaxPool2d(Module):
    """x[B, C, H, W] → the largest of each window, [B, C, H', W'], H' = (H + 2 padding - kernel) // stride + 1.

    stride is the kernel unless given. Padding never wins. A tie shares the gradient in equal parts.
    """

    kernel: int | tuple[int, int]
    stride: int | tuple[int, int] | None = None
    padding: int | tuple[int, int] = 0

    def __post_init__(self) -> None:
        check_window(self, kernel=self.kernel, stride=self.stride)
        check_padding(self, self.padding)

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", "C", "H", "W"), self)
        stride = pair(self.kernel if self.stride is None else self.stride)
        return ops.max_pool2d(x, pair(self.kernel), stride=stride, padding=pair(self.padding))


@dataclass(frozen=True)
class AvgPool2d(Module):
    """x[B, C, H, W] → the mean of each window, [B, C, H', W'], H' = (H + 2 padding - kernel) // stride + 1. stride is
    the kernel unless given. Padding is of zeros, and they count, as in PyTorch.
    """

    kernel: int | tuple[int, int]
    stride: int | tuple[int, int] | None = None
    padding: int | tuple[int, int] = 0

    def __post_init__(self) -> None:
        check_window(self, kernel=self.kernel, stride=self.stride)
        check_padding(self, self.padding)

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", "C", "H", "W"), self)
        stride = pair(self.kernel if self.stride is None else self.stride)
        return ops.avg_pool2d(x, pair(self.kernel), stride=stride, padding=pair(self.padding))


@dataclass(frozen=True)
class AdaptiveAvgPool2d(Module):
    """x[B, C, H, W] → the mean of each of rows by columns equal windows, [B, C, rows, columns]: of the whole image for
    1, the default. The windows must be whole: H and W are multiples of rows and columns.
    """

    size: int | tuple[int, int] = 1

    def __post_init__(self) -> None:
        check_window(self, size=self.size)

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", "C", "H", "W"), self)
        rows, columns = pair(self.size)
        if x.shape[2] % rows or x.shape[3] % columns:
            hint = "Take a size that divides the image's height and width."
            refuse_shape(self, f"images of whole multiples of {rows} by {columns}", x, hint=hint)
        if (rows, columns) == (1, 1):
            return xp.mean(x, axis=(2, 3), keepdims=True)
        return ops.avg_pool2d(x, (x.shape[2] // rows, x.shape[3] // columns))


@dataclass(frozen=True)
class MeanPool(Module):
    """x[B, T, D] → the mean over positions, [B, D]."""

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", "T", "D"), self)
        return xp.mean(x, axis=1)
