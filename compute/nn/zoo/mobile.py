"""Networks in the manner of MobileNetV2: depthwise convolutions between thin layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.convolution import Conv2d
from coterie.compute.nn.linear import Linear
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, check_positive, in_turn, prefixed
from coterie.compute.nn.pooling import AdaptiveAvgPool2d
from coterie.compute.nn.sequential import Flatten, Sequential
from coterie.compute.nn.zoo.residual import group_norm
from coterie.compute.optim.optimizer import check_whole
from coterie.errors import InputError

Stage: TypeAlias = tuple[int, int, int, int]
"""Expansion, channels, how many blocks, stride of the first: a row of table 2 of Sandler et al. 2018."""

MOBILENET_V2: tuple[Stage, ...] = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""The stages of the paper, for images of 224 by 224."""

SMALL: tuple[Stage, ...] = ((1, 16, 1, 1), (4, 24, 2, 2), (4, 32, 2, 2))
"""Stages for images of about 28 by 28."""


@dataclass(frozen=True)
class ReLU6(Module):
    """min(max(x, 0), 6): bounded, so that few bits can hold it (Howard et al. 2017)."""

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return xp.minimum(xp.maximum(x, 0.0), 6.0)


@dataclass(frozen=True)
class InvertedResidual(Module):
    """x[B, inputs, H, W] → [B, outputs, H', W'], H' = (H - 1) // stride + 1 (Sandler et al. 2018): a 1×1 convolution to
    ``expansion`` times the channels (none for 1), a 3×3 convolution of each channel by itself, a 1×1 convolution to
    ``outputs``; x is added where its shape is kept.

    Each convolution is without bias and followed by GroupNorm; ReLU6 follows the first two, nothing the last.
    """

    inputs: int
    outputs: int
    expansion: int = 4
    stride: int = 1
    groups: int = 8

    def __post_init__(self) -> None:
        check_positive(
            self,
            inputs=self.inputs,
            outputs=self.outputs,
            expansion=self.expansion,
            stride=self.stride,
            groups=self.groups,
        )

    def _parts(self) -> dict[str, Module]:
        wide = self.inputs * self.expansion
        depthwise = Conv2d(wide, wide, 3, self.stride, padding=1, groups=wide, bias=False)
        return {
            **({"expand": _unit(self.inputs, wide, self.groups)} if self.expansion > 1 else {}),
            "depthwise": Sequential(depthwise, group_norm(wide, self.groups), ReLU6()),
            "project": Sequential(
                Conv2d(wide, self.outputs, 1, bias=False),
                group_norm(self.outputs, self.groups),
            ),
        }

    def specs(self) -> dict[str, ParameterSpec]:
        return prefixed(self._parts())

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        y = in_turn(self._parts(), params, x, mode)
        return x + y if self.stride == 1 and self.inputs == self.outputs else y


def mobilenet(
    channels: int = 1,
    classes: int = 10,
    stages: Sequence[Stage] = SMALL,
    *,
    stem: int = 16,
    stem_stride: int = 1,
    last: int = 128,
    groups: int = 8,
) -> Sequential:
    """A network of inverted residuals with GroupNorm: images [B, channels, H, W] → logits [B, classes].

    stages: see ``Stage``. stem: channels of the first 3×3 convolution. last: channels of the 1×1 convolution before the
    mean over the image. As it stands it has 32 234 parameters; with ``MOBILENET_V2``, three channels, 1000 classes,
    stem=32, stem_stride=2 and last=1280 it has the paper's layers and their 3 504 872 parameters.
    """
    first = Conv2d(channels, stem, 3, stem_stride, padding=1, bias=False)
    layers: list[Module] = [first, group_norm(stem, groups), ReLU6()]
    before = stem
    for stage in stages:
        if len(stage) != len(SMALL[0]):
            raise InputError(f"mobilenet: the stage {stage!r} is not (expansion, channels, blocks, stride).")
        expansion, outputs, blocks, stride = stage
        check_whole("mobilenet", blocks=blocks)
        for number in range(blocks):
            layers.append(InvertedResidual(before, outputs, expansion, 1 if number else stride, groups))
            before = outputs
    return Sequential(*layers, _unit(before, last, groups), AdaptiveAvgPool2d(), Flatten(), Linear(last, classes))


def _unit(inputs: int, outputs: int, groups: int) -> Sequential:
    """A 1×1 convolution, its normalisation and ReLU6."""
    return Sequential(Conv2d(inputs, outputs, 1, bias=False), group_norm(outputs, groups), ReLU6())
