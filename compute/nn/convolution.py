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
    check_groups,
    check_input,
    check_padding,
    check_window,
    pair,
    require,
)


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
        _check(self)

    def specs(self) -> dict[str, ParameterSpec]:
        return _specs(self, self.outputs, self.inputs // self.groups)

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
        _check(self)
        check_padding(self, self.output_padding)

    def specs(self) -> dict[str, ParameterSpec]:
        return _specs(self, self.inputs, self.outputs // self.groups)

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


def _check(layer: Conv2d | ConvTranspose2d) -> None:
    check_groups(layer, layer.inputs, layer.outputs, layer.groups)
    check_window(layer, kernel=layer.kernel, stride=layer.stride, dilation=layer.dilation)
    check_padding(layer, layer.padding)


def _specs(layer: Conv2d | ConvTranspose2d, channels: int, others: int) -> dict[str, ParameterSpec]:
    """channels: of the images that a convolution with this weight makes. others: those that one of them sees."""
    rows, columns = pair(layer.kernel)
    init = fan_in_uniform(others * rows * columns)
    weight = {"weight": ParameterSpec((channels, others, rows, columns), init)}
    return weight | {"bias": ParameterSpec((layer.outputs,), init)} if layer.bias else weight
