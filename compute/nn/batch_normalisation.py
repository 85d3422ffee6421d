"""Batch normalisation, with its running statistics as buffers."""

from abc import abstractmethod
from dataclasses import dataclass
from math import prod

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.clipping.units import require_whole_batch
from coterie.compute.control.derived import custom_vjp
from coterie.compute.data.batches import SMALLEST_WEIGHT
from coterie.compute.nn.initialisers import Constant
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import (
    Module,
    Parameters,
    ParameterSpec,
    check_epsilon,
    check_input,
    check_number,
    check_positive,
    refuse_shape,
    require,
)
from coterie.compute.nn.normalisation import by_channel


@dataclass(frozen=True)
class _BatchNorm(Module):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias by channel (Ioffe and Szegedy 2015)."""

    channels: int
    epsilon: float = 1e-5
    momentum: float = 0.1

    def __post_init__(self) -> None:
        check_positive(self, channels=self.channels)
        check_number(self, 0, 1, momentum=self.momentum)
        check_epsilon(self, self.epsilon)

    @property
    def _fewest(self) -> int:
        """How many of those axes there are at least."""
        return len(self._axes)

    @property
    @abstractmethod
    def _axes(self) -> tuple[str, ...]:
        """What the axes of the input after the channels are called."""

    def specs(self) -> dict[str, ParameterSpec]:
        shape = (self.channels,)
        return {
            "weight": ParameterSpec(shape, Constant(1.0)),
            "bias": ParameterSpec(shape, Constant(0.0)),
            "running_mean": ParameterSpec(shape, Constant(0.0), "buffer"),
            "running_var": ParameterSpec(shape, Constant(1.0), "buffer"),
        }

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", self.channels, *self._axes[: max(x.ndim - 2, self._fewest)]), self)
        weight, bias, mean, variance = (
            require(params, name, self) for name in ("weight", "bias", "running_mean", "running_var")
        )
        if mode.training:
            return by_batch(x, weight, bias, Running(mean, variance, self.momentum), mode, self.epsilon, self)
        # An average of updates that a lossy codec rounded may fall below 0.
        scale = weight / xp.sqrt(xp.maximum(variance, 0.0) + self.epsilon)
        return x * by_channel(scale, x.ndim) + by_channel(bias - mean * scale, x.ndim)


@dataclass(frozen=True)
class Running:
    """Running statistics [C], as the module was given them, and the way that a batch moves them."""

    mean: Array
    variance: Array
    momentum: float


def by_batch(
    x: Array, weight: Array, bias: Array, running: Running, mode: Mode, epsilon: float, layer: object
) -> Array:
    """x [B, C, ...] normalised by the mean and variance of the batch, as the layers below say; the running statistics
    are reported to ``mode.record``. layer: for messages.
    """
    require_whole_batch(str(layer))
    # Sums of weights, and the number that keeps 0/0 away, are beyond float16.
    counted = xp.float32 if x.dtype.name == "float16" else x.dtype
    rows = xp.ones((x.shape[0],), dtype=counted) if mode.weight is None else xp.astype(mode.weight, counted)
    if rows.ndim != 1 or not rows.shape[0] or x.shape[0] % rows.shape[0]:
        hint = "mode.weight counts examples, [B]; an axis merged with theirs comes after it: [B, T, C] as [B T, C]."
        refuse_shape(layer, f"one weight for each of {x.shape[0]} examples", rows, hint=hint)
    if (merged := x.shape[0] // rows.shape[0]) > 1:
        each = xp.broadcast_to(xp.expand_dims(rows, 1), (rows.shape[0], merged))
        rows = xp.reshape(each, (x.shape[0],))
    total = xp.sum(rows, keepdims=True)
    shares = xp.astype(rows / xp.maximum(total, SMALLEST_WEIGHT), x.dtype)
    mean, _, variance = _moments(x, shares)
    _report(running, mode, mean, variance, total * prod(x.shape[2:]))
    return _normalised(x, weight, bias, shares, epsilon)


def _report(running: Running, mode: Mode, mean: Array, variance: Array, count: Array) -> None:
    """Move the running statistics towards those of the batch."""
    if mode.record is None:
        return
    known = xp.astype(xp.greater(count, 0.0), mean.dtype), xp.astype(xp.greater(count, 1.0), mean.dtype)
    unbiased = variance * (count / xp.maximum(count - 1.0, 1.0))
    for before, value, moves in ((running.mean, mean, known[0]), (running.variance, unbiased, known[1])):
        mode.record(before, before + running.momentum * moves * (value - before))


def _over_places(x: Array) -> Array:
    """[B, C, ...] → the mean over places, [B, C]."""
    return x if x.ndim == 2 else xp.mean(x, axis=tuple(range(2, x.ndim)))


def _by_example(x: Array, rank: int) -> Array:
    """[B, C] as [B, C, 1, ...], which broadcasts over [B, C, ...] of this rank."""
    return xp.reshape(x, (*x.shape, *(1,) * (rank - 2)))


def _moments(x: Array, shares: Array) -> tuple[Array, Array, Array]:
    """The mean of each channel [C], x without it, and the variance [C]. shares [B]: what part each example has in them.

    Examples are weighed when places are summed already: no pass over the images for it.
    """
    rows = xp.reshape(shares, (x.shape[0], 1))
    mean = xp.sum(rows * _over_places(x), axis=0)
    centred = x - by_channel(mean, x.ndim)
    return mean, centred, xp.sum(rows * _over_places(centred * centred), axis=0)


def _normalised(x: Array, weight: Array, bias: Array, shares: Array, epsilon: float) -> Array:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias. The gradient in closed form takes a few passes, that of
    the single operations many.
    """

    def gradient(
        x: Array, weight: Array, bias: Array, shares: Array, y: Array, told: Array
    ) -> tuple[Array, Array, Array, Array]:
        _, centred, variance = _moments(x, shares)
        inverse, places = 1 / xp.sqrt(variance + epsilon), prod(x.shape[2:])
        scale = weight * inverse
        level = xp.sum(_over_places(told), axis=0) * places
        along = xp.sum(_over_places(told * centred), axis=0) * places
        by_mean, by_variance = -(scale * level), -0.5 * (scale * (inverse * inverse * along))
        part = xp.reshape(shares * (1 / places), (x.shape[0], 1))
        own = told * by_channel(scale, x.ndim)
        shared = _by_example(part * by_mean, x.ndim) + centred * _by_example(part * (2 * by_variance), x.ndim)
        by_share = xp.sum(by_mean * _over_places(x) + by_variance * _over_places(centred * centred), axis=1)
        return own + shared, inverse * along, level, by_share

    @custom_vjp(gradient)
    def normalised(x: Array, weight: Array, bias: Array, shares: Array) -> Array:
        _, centred, variance = _moments(x, shares)
        return centred * by_channel(weight / xp.sqrt(variance + epsilon), x.ndim) + by_channel(bias, x.ndim)

    return normalised(x, weight, bias, shares)


@dataclass(frozen=True)
class BatchNorm1d(_BatchNorm):
    """x[B, channels] or x[B, channels, L] → the same shape: (x - mean) / sqrt(variance + epsilon) * weight + bias by
    channel (Ioffe and Szegedy 2015). Every place of a sequence counts as an element of its channel.

    In training mean and variance are those of the batch, of every example as much as ``mode.weight`` says; the variance
    is the mean of squares about the mean. Otherwise they are the buffers running_mean [channels] and running_var
    [channels], which training moves by ``momentum`` of the way towards the batch's mean and its unbiased variance, as
    PyTorch does. A batch without weight moves neither; one element alone moves the mean only. weight [channels] of ones
    and bias [channels] of zeros.

    Axes may be merged with that of the examples, which comes first: [B, T, C] reshaped to [B T, C]. Each of the T rows
    of an example then has its weight.

    An example's output depends on the rest of its batch, so there is no gradient of one example: differential privacy
    does not go together with it (GroupNorm does).
    """

    @property
    def _axes(self) -> tuple[str, ...]:
        return ("L",)

    @property
    def _fewest(self) -> int:
        return 0


@dataclass(frozen=True)
class BatchNorm2d(_BatchNorm):
    """x[B, channels, H, W] → the same shape; as :class:`BatchNorm1d`, with every place of an image counting as an
    element of its channel.
    """

    @property
    def _axes(self) -> tuple[str, ...]:
        return ("H", "W")


@dataclass(frozen=True)
class BatchNorm3d(_BatchNorm):
    """x[B, channels, D, H, W] → the same shape; as :class:`BatchNorm1d`, with every place of a volume counting as an
    element of its channel.
    """

    @property
    def _axes(self) -> tuple[str, ...]:
        return ("D", "H", "W")
