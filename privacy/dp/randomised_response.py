"""Randomised response: the truth with a known probability, else one of the other answers at random (Warner 1965;
Kairouz, Bonawitz and Ramage 2016 for more than two answers).

Of `choices` answers the true one is given with probability e**ε / (e**ε + choices - 1) and each other one with
1 / (e**ε + choices - 1): pure ε for one answer, between any two truths. The odds are a rational number, at most e**ε
and less than 2**-60 of it below, and every draw is exact, so that no rounding adds to ε.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.privacy.dp.noise.fixed_point import exp_minus
from coterie.privacy.dp.noise.source import NoiseSource

LARGEST_EPSILON = 500.0


def odds(epsilon: float) -> Fraction:
    """The largest ratio of two probabilities that ε allows, rounded down: at most e**ε.

    Raises errors.ArgumentValueError unless ε is above 0 and at most 500.
    """
    if not 0 < epsilon <= LARGEST_EPSILON:
        raise errors.ArgumentValueError(
            f"Randomised response needs an epsilon above 0 and at most {LARGEST_EPSILON:g}, not {epsilon:g}."
        )
    bits = 128 + 2 * int(epsilon)
    # One unit too much in e**-ε is the most that it can be off.
    return max(Fraction(1), Fraction((1 << bits), exp_minus(Fraction(epsilon), bits) + 2))


def respond(truth: int, choices: int, epsilon: float, source: NoiseSource) -> int:
    """One answer from 0 to choices - 1. Raises errors.ArgumentValueError for a truth that is not among them."""
    return respond_all([truth], choices, epsilon, source)[0]


def respond_all(truths: Sequence[int], choices: int, epsilon: float, source: NoiseSource) -> list[int]:
    """An answer to each, drawn independently. Raises errors.ArgumentValueError as `respond` does."""
    wrong = next((truth for truth in truths if not (choices >= 2 and 0 <= truth < choices)), None)
    if wrong is not None:
        raise errors.ArgumentValueError(f"The answer {wrong} is not one of {choices}.")
    ratio = odds(epsilon)
    return [_answer(truth, choices, ratio, source) for truth in truths]


def _answer(truth: int, choices: int, ratio: Fraction, source: NoiseSource) -> int:
    drawn = source.below(ratio.numerator + (choices - 1) * ratio.denominator)
    if drawn < ratio.numerator:
        return truth
    other = (drawn - ratio.numerator) // ratio.denominator
    return other + 1 if other >= truth else other


def estimate(counts: npt.NDArray[np.integer[Any]], epsilon: float) -> npt.NDArray[np.float64]:
    """How many truths there were of each kind, without bias, from how often each answer was given."""
    ratio, answers = float(odds(epsilon)), int(counts.sum())
    other = 1 / (ratio + counts.size - 1)
    return (counts.astype(np.float64) - answers * other) * (1 / ((ratio - 1) * other))
