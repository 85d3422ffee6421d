"""Tails of the binomial distribution, and what they say of a probability, without a statistics library."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Tails = npt.NDArray[np.float64]


def upper_tails(trials: int, chance: float) -> Tails:
    """P[X ≥ k] for k = 0, 1, …, trials, X ~ Bin(trials, chance): ``[trials + 1]``."""
    if chance <= 0 or chance >= 1:
        return np.array([1.0, *([0.0 if chance <= 0 else 1.0] * trials)])
    k = np.arange(trials + 1, dtype=np.float64)
    factorials = np.concatenate([np.zeros(1), np.cumsum(np.log(k[1:]))])
    logs = factorials[-1] - factorials - factorials[::-1] + k * math.log(chance) + (trials - k) * math.log1p(-chance)
    return np.minimum(np.cumsum(np.exp(logs)[::-1])[::-1], 1.0)


def least_chance(successes: int, trials: int, mistake: float) -> float:
    """A lower bound of the chance behind so many successes, wrong with a probability of at most `mistake` (Clopper and
    Pearson, 1934).
    """
    if successes == 0:
        return 0.0
    return _crossing(lambda chance: float(upper_tails(trials, chance)[successes]) < mistake)


def most_chance(successes: int, trials: int, mistake: float) -> float:
    """An upper bound likewise."""
    return 1 - least_chance(trials - successes, trials, mistake)


def _crossing(below: Callable[[float], bool]) -> float:
    """The largest chance in 0..1 (to 1e-12, from below) at which `below` still holds, true at 0."""
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low
