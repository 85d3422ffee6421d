"""What every question has as a model: a vector of zeros, what devices are told, and the linear loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coterie.aggregation.analytics.rule import SETTINGS, TALLY, QuerySums
from coterie.compute.nn.module import ParameterSpec

if TYPE_CHECKING:
    from coterie.compute.array import Array


def parameters(rule: QuerySums) -> dict[str, ParameterSpec]:
    """θ, and what devices are told."""
    settings = {SETTINGS + name: ParameterSpec(value.shape, _zeros) for name, value in rule.settings.items()}
    return {TALLY: ParameterSpec((rule.size,), _zeros), **settings}


def linear(prediction: Array, label: Array) -> Array:
    """−⟨θ, what a row adds⟩."""
    return -prediction


def _zeros(shape: tuple[int, ...], bits: np.random.Philox) -> npt.NDArray[np.float32]:
    return np.zeros(shape, np.float32)
