"""Poisson batches: each row of a device is in a batch for itself, with the same public probability.

Graphs have one batch shape, so a batch has a public most. A batch that exceeds it counts as empty: noise alone is
released in its place. That costs little more than the ideal. Let S be the rows drawn of all but one row x. Where
|S| < most, the step with x and the step without it are those of the ideal mechanism; where |S| > most, both are noise
alone; where |S| = most, they differ only if x was drawn too. By the joint convexity of hockey-stick divergences, one
step is at most the ideal step and, with probability rate · P[|S| = most], a failure. |S| is binomial with a mean of at
most λ = expected, so P[|S| >= most] is at most that of a Poisson number of mean λ, for most >= λ + 1 (Anderson and
Samuels, 1967), whatever number of rows the device has.
"""

import math

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.privacy.dp.rounds import Draws

_WORD = 1 << 64


def rate_of(expected: int, rows: int) -> float:
    """The probability with which each of `rows` rows is drawn, so that a batch has at most `expected` on average."""
    return min(1.0, expected / rows)


def overflow(expected: int, most: int) -> float:
    """An upper bound of the probability that a Poisson number of this mean is `most` or more.

    Its first term times a geometric series. Raises errors.ArgumentValueError unless most > expected >= 1.
    """
    if not 1 <= expected < most:
        raise errors.ArgumentValueError(
            f"A batch of {expected} rows on average needs room for more than that, and for one row at least; the most "
            f"is {most}.",
            hint="Raise max_batch, or leave it out.",
        )
    first = math.exp(most * math.log(expected) - expected - math.lgamma(most + 1))
    return min(1.0, first / (1 - expected / (most + 1)))


def draws(expected: int, most: int, *, rows: int, steps: int) -> Draws:
    """What a device draws in one round of so many steps, with what its overflowing batches cost.

    Raises errors.ArgumentValueError as `overflow` does.
    """
    rate = rate_of(expected, rows)
    return Draws(rate, steps, min(1.0, steps * rate * overflow(expected, most)))


def most_of(expected: int, *, rows: int, steps: int, failure: float) -> int:
    """The least most for which `draws` of all `steps` fail with probability `failure` at most."""
    low, high = expected, expected + 1
    while draws(expected, high, rows=rows, steps=steps).failure > failure:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        fits = draws(expected, middle, rows=rows, steps=steps).failure <= failure
        low, high = (low, middle) if fits else (middle, high)
    return high


def draw_rows(rows: int, rate: float, source: NoiseSource) -> npt.NDArray[np.int64]:
    """The places of the rows in one batch, ascending: each of 0 … rows - 1 for itself with probability `rate`, rounded
    down to a multiple of 2**-64.
    """
    threshold = math.floor(rate * _WORD)
    if threshold >= _WORD:
        return np.arange(rows, dtype=np.int64)
    return np.flatnonzero(source.words64(rows) < np.uint64(threshold)).astype(np.int64)
