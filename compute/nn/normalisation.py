"""Normalisation of each example by itself: layer, root mean square, group and instance."""

from dataclasses import dataclass
from math import prod

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.control.derived import custom_vjp
from coterie.compute.nn.initialisers import Constant
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import (
    Module,
    Parameters,
    ParameterSpec,
    check_epsilon,
    check_positive,
    refuse_shape,
    require,
)
from coterie.errors import InputError


@dataclass(frozen=True)
class LayerNorm(Module):
    """x[..., size] → (x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis (Ba et al. 2016).

    weight [size] of ones and bias [size] of zeros. The variance is the mean of squares about the mean (not divided by
    size - 1).
    """

    size: int
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        check_positive(self, size=self.size)
        check_epsilon(self, self.epsilon)

    def specs(self) -> dict[str, ParameterSpec]:
        return {
            "weight": ParameterSpec((self.size,), Constant(1.0)),
            "bias": ParameterSpec((self.size,), Constant(0.0)),
        }

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        _check_last(self, x, self.size)
        return _normal(x, self.epsilon) * require(params, "weight", self) + require(params, "bias", self)


@dataclass(frozen=True)
class RMSNorm(Module):
    """x[..., size] → x / sqrt(mean of x² + epsilon) * weight over the last axis (Zhang and Sennrich 2019).

    weight [size] of ones.
    """

    size: int
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        check_positive(self, size=self.size)
        check_epsilon(self, self.epsilon)

    def specs(self) -> dict[str, ParameterSpec]:
        return {"weight": ParameterSpec((self.size,), Constant(1.0))}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        _check_last(self, x, self.size)
        size = xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return x / size * require(params, "weight", self)


@dataclass(frozen=True)
class GroupNorm(Module):
    """x[B, channels, ...] → normalised over each of ``groups`` runs of channels of an example, then scaled and shifted
    by channel (Wu and He 2018). weight [channels] of ones and bias [channels] of zeros.

    It looks at no other example, so it needs no running statistics: the usual choice where BatchNorm will not do.
    """

    groups: int
    channels: int
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        check_positive(self, groups=self.groups, channels=self.channels)
        check_epsilon(self, self.epsilon)
        if self.channels % self.groups:
            raise InputError(f"GroupNorm: {self.groups} groups must divide channels {self.channels}.")

    def specs(self) -> dict[str, ParameterSpec]:
        return {
            "weight": ParameterSpec((self.channels,), Constant(1.0)),
            "bias": ParameterSpec((self.channels,), Constant(0.0)),
        }

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        normal = _by_group(self, x, self.groups, self.channels, self.epsilon)
        weight, bias = (by_channel(require(params, name, self), x.ndim) for name in ("weight", "bias"))
        return normal * weight + bias


@dataclass(frozen=True)
class InstanceNorm(Module):
    """x[B, channels, ...] → every channel of every example normalised by itself (Ulyanov et al. 2016); no
    parameters.
    """

    channels: int
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        check_positive(self, channels=self.channels)
        check_epsilon(self, self.epsilon)

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return _by_group(self, x, self.channels, self.channels, self.epsilon)


def by_channel(x: Array, rank: int) -> Array:
    """[C] as [C, 1, ...], which broadcasts over [B, C, ...] of this rank."""
    return xp.reshape(x, (x.shape[0], *(1,) * (rank - 2)))


def _normal(x: Array, epsilon: float) -> Array:
    """x with mean 0 and variance 1 along the last axis."""

    def parts(x: Array) -> tuple[Array, Array]:
        centred = x - xp.mean(x, axis=-1, keepdims=True)
        return centred, 1.0 / xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True) + epsilon)

    # What automatic differentiation would make of it takes twice as many passes over x.
    def gradient(x: Array, normal: Array, told: Array) -> Array:
        _, inverse = parts(x)
        along = normal * xp.mean(told * normal, axis=-1, keepdims=True)
        return inverse * (told - xp.mean(told, axis=-1, keepdims=True) - along)

    @custom_vjp(gradient)
    def normalised(x: Array) -> Array:
        centred, inverse = parts(x)
        return centred * inverse

    return normalised(x)


def _by_group(module: Module, x: Array, groups: int, channels: int, epsilon: float) -> Array:
    if x.ndim < 2 or x.shape[1] != channels:
        refuse_shape(module, f"[B, {channels}, ...]", x, hint="Its channels are the size of the second axis of x.")
    return xp.reshape(_normal(xp.reshape(x, (x.shape[0], groups, prod(x.shape[1:]) // groups)), epsilon), x.shape)


def _check_last(module: Module, x: Array, size: int) -> None:
    if not x.shape or x.shape[-1] != size:
        refuse_shape(module, f"[..., {size}]", x, hint="Its size is that of the last axis of x.")
