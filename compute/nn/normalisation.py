"""Layer normalisation."""

from dataclasses import dataclass

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.initialisers import Constant
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, check_positive, require
from coterie.errors import ShapeError


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

    def specs(self) -> dict[str, ParameterSpec]:
        return {
            "weight": ParameterSpec((self.size,), Constant(1.0)),
            "bias": ParameterSpec((self.size,), Constant(0.0)),
        }

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        if not x.shape or x.shape[-1] != self.size:
            raise ShapeError(f"{self} takes [..., {self.size}], got {list(x.shape)}.")
        centred = x - xp.mean(x, axis=-1, keepdims=True)
        variance = xp.mean(centred * centred, axis=-1, keepdims=True)
        normal = centred / xp.sqrt(variance + self.epsilon)
        return normal * require(params, "weight", self) + require(params, "bias", self)
