"""Residual networks: with GroupNorm, which federated learning prefers to BatchNorm, because there are no statistics to
average and no example depends on another (Hsieh et al. 2020); and ResNet-18 as it was published, with BatchNorm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import cast

from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.nn.activations import ReLU
from coterie.compute.nn.batch_normalisation import BatchNorm2d
from coterie.compute.nn.convolution import Conv2d
from coterie.compute.nn.linear import Linear
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, check_positive, part, prefixed
from coterie.compute.nn.normalisation import GroupNorm
from coterie.compute.nn.pooling import AdaptiveAvgPool2d, MaxPool2d
from coterie.compute.nn.sequential import Flatten, Sequential
from coterie.compute.optim.optimizer import check_whole
from coterie.errors import InputError

RESNET_WIDTHS = (64, 128, 256, 512)
"""Channels of the four stages of a ResNet for images of 224 by 224."""


@dataclass(frozen=True)
class ResidualBlock(Module):
    """x[B, inputs, H, W] → [B, outputs, H', W'], H' = (H - 1) // stride + 1: relu(norm(conv(relu(norm(conv(x))))) +
    shortcut(x)), the basic block of He et al. 2016 with 3×3 convolutions without bias.

    The shortcut is x itself; where channels or sizes change, a 1×1 convolution and a normalisation. groups: of the
    GroupNorms, at most; fewer where they do not divide the channels. None normalises by batch instead.
    """

    inputs: int
    outputs: int
    stride: int = 1
    groups: int | None = 8

    def __post_init__(self) -> None:
        check_positive(self, inputs=self.inputs, outputs=self.outputs, stride=self.stride)
        if self.groups is not None:
            check_positive(self, groups=self.groups)

    def _parts(self) -> dict[str, Module]:
        norm = BatchNorm2d(self.outputs) if self.groups is None else group_norm(self.outputs, self.groups)
        parts: dict[str, Module] = {
            "conv1": Conv2d(self.inputs, self.outputs, 3, self.stride, padding=1, bias=False),
            "norm1": norm,
            "conv2": Conv2d(self.outputs, self.outputs, 3, padding=1, bias=False),
            "norm2": norm,
        }
        if self.stride != 1 or self.inputs != self.outputs:
            parts |= {"conv3": Conv2d(self.inputs, self.outputs, 1, self.stride, bias=False), "norm3": norm}
        return parts

    def specs(self) -> dict[str, ParameterSpec]:
        return prefixed(self._parts())

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        parts = self._parts()

        def run(x: Array, number: int) -> Array:
            for name in (f"conv{number}", f"norm{number}"):
                x = parts[name](part(params, name), x, mode)
            return x

        shortcut = run(x, 3) if "conv3" in parts else x
        return ops.relu(run(ops.relu(run(x, 1)), 2) + shortcut)


def group_norm(channels: int, groups: int) -> GroupNorm:
    """A GroupNorm of at most so many groups: of the most that divide both numbers."""
    return GroupNorm(gcd(channels, groups), channels)


def resnet(
    channels: int = 1, classes: int = 10, widths: Sequence[int] = (16, 32, 64), blocks: int = 1, groups: int = 8
) -> Sequential:
    """A residual network (He et al. 2016, section 4.2) with GroupNorm: images [B, channels, H, W] → logits [B,
    classes].

    A 3×3 convolution, then ``blocks`` residual blocks of each width, the first of every width but the first halving the
    image, the mean over the image and a linear layer. As it stands it has 77 754 parameters; with channels=3 and
    blocks=3 it is the paper's ResNet-20 with projections, 272 474. Raises InputError for no width or no block.
    """
    if not isinstance(cast(object, widths), Sequence) or not widths:
        raise InputError(f"resnet needs at least one width, as in (16, 32, 64); got {widths!r}.")
    check_whole("resnet", blocks=blocks)
    layers: list[Module] = [
        Conv2d(channels, widths[0], 3, padding=1, bias=False),
        group_norm(widths[0], groups),
        ReLU(),
    ]
    body = _stages(widths, blocks, groups)
    return Sequential(*layers, *body, AdaptiveAvgPool2d(), Flatten(), Linear(widths[-1], classes))


def resnet18(channels: int = 3, classes: int = 1000) -> Sequential:
    """ResNet-18 (He et al. 2016, table 1) with BatchNorm: images [B, channels, H, W], of 224 by 224 in the paper →
    logits [B, classes].

    It halves the image five times, so smaller images of 32 by 32 and more go through it too. As it stands it learns
    11 689 512 numbers, beside the running statistics.
    """
    first = Conv2d(channels, RESNET_WIDTHS[0], 7, 2, padding=3, bias=False)
    return Sequential(
        first,
        BatchNorm2d(RESNET_WIDTHS[0]),
        ReLU(),
        MaxPool2d(3, 2, padding=1),
        *_stages(RESNET_WIDTHS, 2, None),
        AdaptiveAvgPool2d(),
        Flatten(),
        Linear(RESNET_WIDTHS[-1], classes),
    )


def _stages(widths: Sequence[int], blocks: int, groups: int | None) -> list[Module]:
    """``blocks`` residual blocks of each width, the first of every width but the first halving the image."""
    layers: list[Module] = []
    before = widths[0]
    for stage, width in enumerate(widths):
        for number in range(blocks):
            layers.append(ResidualBlock(before, width, 2 if stage and not number else 1, groups))
            before = width
    return layers
