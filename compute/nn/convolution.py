"""The convolution layer and its transpose."""

from dataclasses import dataclass

from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.nn.initialisers import fan_in_uniform
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import (
    Module,
    Parameters,
    ParameterSpec,
    check_input,
    check_padding,
    check_positive,
    check_window,
    pair,
    require,
)
from coterie.errors import InputError


@dataclass(frozen=True)
class Conv2d(Module):
    """x[B, inputs, H, W] → [B, outputs, H', W'], H' = (H + 2 padding - dilation (kernel - 1) - 1) // stride + 1; the
    same for W'.

    weight [outputs, inputs/groups, kh, kw] and bias [outputs], both uniform in ±1/sqrt(inputs/groups kh kw), as in
    PyTorch. It is a cross-correlation: the kernel is not flipped. kernel, stride, padding and dilation are one number,
    or (height, width).
    """

    inputs: int
    outputs: int
    kernel: int | tuple[int, int]
    stride: int | tuple[int, int] = 1
    padding: int | tuple[int, int] = 0
    dilation: int | tuple[int, int] = 1
    groups: int = 1
    bias: bool = True

    def __post_init__(self) -> None:
        check_positive(self, inputs=self.inputs, outputs=self.outputs, groups=self.groups)
        check_window(self, kernel=self.kernel, stride=self.stride, dilation=self.dilation)
        check_padding(self, self.padding)
        if self.inputs % self.groups or self.outputs % self.groups:
            raise InputError(
                f"Conv2d: {self.groups} groups must divide inputs {self.inputs} and outputs {self.outputs}."
            )

    def specs(self) -> dict[str, ParameterSpec]:
        rows, columns = pair(self.kernel)
        channels = self.inputs // self.groups
        init = fan_in_uniform(channels * rows * columns)
        weight = {"weight": ParameterSpec((self.outputs, channels, rows, columns), init)}
        return weight | {"bias": ParameterSpec((self.outputs,), init)} if self.bias else weight

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", self.inputs, "H", "W"), self)
        return ops.conv2d(
            x,
            require(params, "weight", self),
            require(params, "bias", self) if self.bias else None,
            stride=pair(self.stride),
            padding=pair(self.padding),
            dilation=pair(self.dilation),
            groups=self.groups,
        )


@dataclass(frozen=True)
class ConvTranspose2d(Module):
    """x[B, inputs, H, W] → [B, outputs, H', W'], H' = (H - 1) stride - 2 padding + dilation (kernel - 1) +
    output_padding + 1; the same for W'. It is the gradient of a convolution with respect to its input.

    weight [inputs, outputs/groups, kh, kw] and bias [outputs], both uniform in ±1/sqrt(outputs/groups kh kw), as in
    PyTorch. output_padding, below the stride, chooses among the sizes that a convolution would map to H.
    """

    inputs: int
    outputs: int
    kernel: int | tuple[int, int]
    stride: int | tuple[int, int] = 1
    padding: int | tuple[int, int] = 0
    output_padding: int | tuple[int, int] = 0
    dilation: int | tuple[int, int] = 1
    groups: int = 1
    bias: bool = True

    def __post_init__(self) -> None:
        check_positive(self, inputs=self.inputs, outputs=self.outputs, groups=self.groups)
        check_window(self, kernel=self.kernel, stride=self.stride, dilation=self.dilation)
        check_padding(self, self.padding)
        check_padding(self, self.output_padding)
        if self.inputs % self.groups or self.outputs % self.groups:
            raise InputError(
                f"ConvTranspose2d: {self.groups} groups must divide inputs {self.inputs} and outputs {self.outputs}."
            )

    def specs(self) -> dict[str, ParameterSpec]:
        rows, columns = pair(self.kernel)
        channels = self.outputs // self.groups
        init = fan_in_uniform(channels * rows * columns)
        weight = {"weight": ParameterSpec((self.inputs, channels, rows, columns), init)}
        return weight | {"bias": ParameterSpec((self.outputs,), init)} if self.bias else weight

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", self.inputs, "H", "W"), self)
        return ops.conv_transpose2d(
            x,
            require(params, "weight", self),
            require(params, "bias", self) if self.bias else None,
            stride=pair(self.stride),
            padding=pair(self.padding),
            output_padding=pair(self.output_padding),
            dilation=pair(self.dilation),
            groups=self.groups,
        )
