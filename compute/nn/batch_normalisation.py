"""Batch normalisation, with its running statistics as buffers."""

from abc import abstractmethod
from dataclasses import dataclass
from math import prod

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.initialisers import Constant
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, check_positive, require
from coterie.compute.nn.normalisation import by_channel
from coterie.compute.private.units import require_whole_batch
from coterie.errors import InputError, ShapeError

# A sum of weights below this is zero; dividing by it keeps 0/0 away.
_SMALLEST = 1e-12


@dataclass(frozen=True)
class _BatchNorm(Module):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias by channel (Ioffe and Szegedy 2015)."""

    channels: int
    epsilon: float = 1e-5
    momentum: float = 0.1

    def __post_init__(self) -> None:
        check_positive(self, channels=self.channels)
        if not 0 <= self.momentum <= 1:
            raise InputError(f"{type(self).__name__}: momentum must be in 0 .. 1, got {self.momentum}.")

    @property
    @abstractmethod
    def _rank(self) -> int:
        """How many axes the input has."""

    def specs(self) -> dict[str, ParameterSpec]:
        shape = (self.channels,)
        return {
            "weight": ParameterSpec(shape, Constant(1.0)),
            "bias": ParameterSpec(shape, Constant(0.0)),
            "running_mean": ParameterSpec(shape, Constant(0.0), "buffer"),
            "running_var": ParameterSpec(shape, Constant(1.0), "buffer"),
        }

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        if x.ndim != self._rank or x.shape[1] != self.channels:
            wanted = ", ".join(("B", str(self.channels), "H", "W")[: self._rank])
            raise ShapeError(f"{self} takes [{wanted}], got {list(x.shape)}.")
        weight, bias, mean, variance = (
            by_channel(require(params, name, self), x.ndim)
            for name in ("weight", "bias", "running_mean", "running_var")
        )
        if not mode.training:
            # An average of updates that a lossy codec rounded may fall below 0.
            return (x - mean) / xp.sqrt(xp.maximum(variance, 0.0) + self.epsilon) * weight + bias
        require_whole_batch(str(self))
        share, count = self._shares(x, mode.weight)
        axes = (0, *range(2, x.ndim))
        mean = xp.sum(x * share, axis=axes, keepdims=True)
        centred = x - mean
        variance = xp.sum(centred * centred * share, axis=axes, keepdims=True)
        self._report(params, mode, xp.reshape(mean, (self.channels,)), xp.reshape(variance, (self.channels,)), count)
        return centred / xp.sqrt(variance + self.epsilon) * weight + bias

    def _shares(self, x: Array, weight: Array | None) -> tuple[Array, Array]:
        """The part that every element of a channel has in its mean, and how many elements count, [1]."""
        places = prod(x.shape[2:])
        rows = xp.ones((x.shape[0],), dtype=x.dtype) if weight is None else xp.astype(weight, x.dtype)
        if rows.shape != x.shape[:1]:
            raise ShapeError(f"{self} takes one weight for each of {x.shape[0]} examples, got {list(rows.shape)}.")
        total = xp.sum(rows, keepdims=True)
        shares = rows / (xp.maximum(total, _SMALLEST) * places)
        return xp.reshape(shares, (x.shape[0], *(1,) * (x.ndim - 1))), total * places

    def _report(self, params: Parameters, mode: Mode, mean: Array, variance: Array, count: Array) -> None:
        """Move the running statistics towards those of the batch."""
        if mode.record is None:
            return
        known = xp.astype(xp.greater(count, 0.0), mean.dtype), xp.astype(xp.greater(count, 1.0), mean.dtype)
        unbiased = variance * (count / xp.maximum(count - 1.0, 1.0))
        for name, value, moves in (("running_mean", mean, known[0]), ("running_var", unbiased, known[1])):
            before = require(params, name, self)
            mode.record(before, before + self.momentum * moves * (value - before))


@dataclass(frozen=True)
class BatchNorm1d(_BatchNorm):
    """x[B, channels] → the same shape: (x - mean) / sqrt(variance + epsilon) * weight + bias by channel (Ioffe and
    Szegedy 2015).

    In training mean and variance are those of the batch, of every example as much as ``mode.weight`` says; the variance
    is the mean of squares about the mean. Otherwise they are the buffers running_mean [channels] and running_var
    [channels], which training moves by ``momentum`` of the way towards the batch's mean and its unbiased variance, as
    PyTorch does. A batch without weight moves neither; one element alone moves the mean only. weight [channels] of ones
    and bias [channels] of zeros.

    An example's output depends on the rest of its batch, so there is no gradient of one example: differential privacy
    does not go together with it (GroupNorm does).
    """

    @property
    def _rank(self) -> int:
        return 2


@dataclass(frozen=True)
class BatchNorm2d(_BatchNorm):
    """x[B, channels, H, W] → the same shape; as :class:`BatchNorm1d`, with every place of an image counting as an
    element of its channel.
    """

    @property
    def _rank(self) -> int:
        return 4
