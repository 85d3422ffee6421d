"""Elementwise layers and softmax: no parameters, the shape stays."""

from dataclasses import dataclass

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, check_number


@dataclass(frozen=True)
class ReLU(Module):
    """max(x, 0); the gradient at 0 is 0."""

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return ops.relu(x)


@dataclass(frozen=True)
class LeakyReLU(Module):
    """x above 0, else slope x; the gradient at 0 is the slope, as in PyTorch."""

    slope: float = 0.01

    def __post_init__(self) -> None:
        check_number(self, 0, 1, slope=self.slope)

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return xp.where(xp.greater(x, 0.0), x, self.slope * x)


@dataclass(frozen=True)
class ELU(Module):
    """x above 0, else alpha (exp(x) - 1) (Clevert, Unterthiner and Hochreiter 2016), without overflow."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, 0, 1e30, alpha=self.alpha)

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        above = xp.greater(x, 0.0)
        return xp.where(above, x, self.alpha * xp.expm1(xp.where(above, 0.0, x)))


@dataclass(frozen=True)
class SiLU(Module):
    """x / (1 + exp(-x)), which is also called swish."""

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return x * ops.sigmoid(x)


@dataclass(frozen=True)
class HardSigmoid(Module):
    """x/6 + 1/2 between 0 and 1, flat outside -3 .. 3 (Howard et al. 2019)."""

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return xp.clip(x * (1 / 6) + 0.5, 0.0, 1.0)


@dataclass(frozen=True)
class HardSwish(Module):
    """x times its hard sigmoid (Howard et al. 2019): h-swish, without exponentials."""

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return x * xp.clip(x * (1 / 6) + 0.5, 0.0, 1.0)


@dataclass(frozen=True)
class Tanh(Module):
    """tanh(x)."""

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return ops.tanh(x)


@dataclass(frozen=True)
class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return ops.sigmoid(x)


@dataclass(frozen=True)
class GELU(Module):
    """x/2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³))), the tanh form of Hendrycks and Gimpel 2016."""

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return ops.gelu(x)


@dataclass(frozen=True)
class Softmax(Module):
    """exp(x) / sum of exp(x) along ``axis``. Losses here take logits: train without this layer, and add it for
    inference if probabilities are wanted.
    """

    axis: int = -1

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        return ops.softmax(x, axis=self.axis)
