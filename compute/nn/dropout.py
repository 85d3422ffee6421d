"""Dropout."""

from dataclasses import dataclass
from numbers import Real
from typing import cast

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec
from coterie.errors import InputError


@dataclass(frozen=True)
class Dropout(Module):
    """In training, zeroes each element with probability ``rate`` and divides the others by 1 - rate; otherwise gives x
    (Srivastava et al. 2014).

    The numbers come from ``mode.uniform``, one for each element of x. Raises InputError in training without it.
    """

    rate: float

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.rate), Real) or not 0 <= self.rate < 1:
            raise InputError(f"Dropout: rate must be at least 0 and below 1, got {self.rate!r}.")

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        if not mode.training or self.rate == 0:
            return x
        if mode.uniform is None:
            raise InputError(f"{self} needs random numbers in training.", hint="Call the model with nn.train(uniform).")
        kept = xp.astype(xp.greater_equal(mode.uniform(x.shape), self.rate), x.dtype)
        return x * (kept * (1 / (1 - self.rate)))
