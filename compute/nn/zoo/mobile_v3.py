"""MobileNetV3: blocks of MobileNetV2 with squeeze-and-excitation and h-swish (Howard et al. 2019), with BatchNorm."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from coterie.compute.array import Array
from coterie.compute.nn.activations import HardSigmoid, HardSwish, ReLU
from coterie.compute.nn.batch_normalisation import BatchNorm2d
from coterie.compute.nn.convolution import Conv2d
from coterie.compute.nn.dropout import Dropout
from coterie.compute.nn.linear import Linear
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, check_positive, in_turn, prefixed
from coterie.compute.nn.pooling import AdaptiveAvgPool2d
from coterie.compute.nn.sequential import Flatten, Sequential
from coterie.errors import InputError

Activation: TypeAlias = Literal["relu", "hswish"]
Row: TypeAlias = tuple[int, int, int, bool, Activation, int]
"""Kernel, expanded channels, channels, whether it squeezes, activation, stride: a row of the paper's tables."""

MOBILENET_V3_SMALL: tuple[Row, ...] = (
    (3, 16, 16, True, "relu", 2),
    (3, 72, 24, False, "relu", 2),
    (3, 88, 24, False, "relu", 1),
    (5, 96, 40, True, "hswish", 2),
    (5, 240, 40, True, "hswish", 1),
    (5, 240, 40, True, "hswish", 1),
    (5, 120, 48, True, "hswish", 1),
    (5, 144, 48, True, "hswish", 1),
    (5, 288, 96, True, "hswish", 2),
    (5, 576, 96, True, "hswish", 1),
    (5, 576, 96, True, "hswish", 1),
)
"""Table 2 of the paper, for images of 224 by 224."""

_STEM = 16
_ACTIVATIONS: dict[Activation, type[ReLU] | type[HardSwish]] = {"relu": ReLU, "hswish": HardSwish}


@dataclass(frozen=True)
class SqueezeExcite(Module):
    """x[B, channels, H, W] → x times a factor in 0 .. 1 for each channel, which two 1×1 convolutions make of the means
    over the image (Hu et al. 2018): to ``squeezed`` channels and ReLU, back and a hard sigmoid.
    """

    channels: int
    squeezed: int

    def __post_init__(self) -> None:
        check_positive(self, channels=self.channels, squeezed=self.squeezed)

    def _gate(self) -> Sequential:
        down, up = Conv2d(self.channels, self.squeezed, 1), Conv2d(self.squeezed, self.channels, 1)
        return Sequential(AdaptiveAvgPool2d(), down, ReLU(), up, HardSigmoid())

    def specs(self) -> dict[str, ParameterSpec]:
        return self._gate().specs()

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return x * self._gate()(params, x, mode)


@dataclass(frozen=True)
class Bottleneck(Module):
    """x[B, inputs, H, W] → [B, outputs, H', W'], H' = (H - 1) // stride + 1: a 1×1 convolution to ``expanded`` channels
    (none where these are the inputs), a convolution of each channel by itself, squeeze-and-excitation where asked for,
    a 1×1 convolution to ``outputs``; x is added where its shape is kept.

    Each convolution is without bias and followed by BatchNorm; the activation follows the first two.
    """

    inputs: int
    expanded: int
    outputs: int
    kernel: int = 3
    stride: int = 1
    squeeze: bool = True
    activation: Activation = "hswish"

    def __post_init__(self) -> None:
        check_positive(
            self,
            inputs=self.inputs,
            expanded=self.expanded,
            outputs=self.outputs,
            kernel=self.kernel,
            stride=self.stride,
        )
        if self.activation not in _ACTIVATIONS:
            raise InputError(f"Bottleneck: activation must be 'relu' or 'hswish', not {self.activation!r}.")

    def _parts(self) -> dict[str, Module]:
        wide, act = self.expanded, _ACTIVATIONS[self.activation]
        parts: dict[str, Module] = {}
        if wide != self.inputs:
            parts["expand"] = Sequential(*_normalised(Conv2d(self.inputs, wide, 1, bias=False)), act())
        depthwise = Conv2d(
            wide, wide, self.kernel, self.stride, padding=(self.kernel - 1) // 2, groups=wide, bias=False
        )
        parts["depthwise"] = Sequential(*_normalised(depthwise), act())
        if self.squeeze:
            parts["squeeze"] = SqueezeExcite(wide, by_eight(wide / 4))
        parts["project"] = Sequential(*_normalised(Conv2d(wide, self.outputs, 1, bias=False)))
        return parts

    def specs(self) -> dict[str, ParameterSpec]:
        return prefixed(self._parts())

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        y = in_turn(self._parts(), params, x, mode)
        return x + y if self.stride == 1 and self.inputs == self.outputs else y


def mobilenet_v3(
    channels: int = 3,
    classes: int = 1000,
    rows: Sequence[Row] = MOBILENET_V3_SMALL,
    *,
    last: int = 1024,
    dropout: float = 0.2,
) -> Sequential:
    """MobileNetV3-Small: images [B, channels, H, W], of 224 by 224 in the paper → logits [B, classes].

    rows: see ``Row``. last: width of the layer before the logits, behind which ``dropout`` acts. It halves the image
    five times. As it stands it learns 2 542 856 numbers, beside the running statistics. Raises InputError for what is
    no row.
    """
    layers: list[Module] = [*_normalised(Conv2d(channels, _STEM, 3, 2, padding=1, bias=False)), HardSwish()]
    before = _STEM
    for row in rows:
        if len(row) != len(MOBILENET_V3_SMALL[0]):
            raise InputError(
                f"mobilenet_v3: the row {row!r} is not (kernel, expanded, channels, squeezes, activation, stride)."
            )
        kernel, expanded, outputs, squeeze, activation, stride = row
        layers.append(Bottleneck(before, expanded, outputs, kernel, stride, squeeze, activation))
        before = outputs
    wide = 6 * before
    layers += [*_normalised(Conv2d(before, wide, 1, bias=False)), HardSwish(), AdaptiveAvgPool2d(), Flatten()]
    return Sequential(*layers, Linear(wide, last), HardSwish(), Dropout(dropout), Linear(last, classes))


def by_eight(channels: float) -> int:
    """The multiple of 8 that is nearest to a number of channels, at least 8 and at least nine tenths of it."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


def _normalised(convolution: Conv2d) -> tuple[Module, Module]:
    """A convolution and its BatchNorm, with the numbers of the paper's own training."""
    return convolution, BatchNorm2d(convolution.outputs, epsilon=1e-3, momentum=0.01)
