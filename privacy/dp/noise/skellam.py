"""Skellam noise: the difference of two Poisson numbers of mean μ/2 each; its variance is μ (Agarwal, Kairouz and Liu
2021, arXiv:2110.04995). The sum of independent Skellam numbers is exactly one of the summed variance, which makes it
the natural noise of shares that are added.

P(k) = exp(-μ) I_|k|(μ). The modified Bessel functions come from their own recurrence I_(k-1) = I_(k+1) + (2k/μ) I_k,
run backwards from far outside (J. C. P. Miller's way) in whole numbers: all terms are positive, so nothing cancels. A
table (see table.py) serves variances up to 2**16; a larger one, up to 2**20, is drawn as a sum of equal parts.
"""

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.privacy.dp.noise.source import Source
from coterie.privacy.dp.noise.table import Table

LARGEST_VARIANCE = 1 << 20
_TABLE_VARIANCE = 1 << 16
_WEIGHT_BITS = 320
# exp(-105) < 2**-151: what lies beyond the table on one side.
_TAIL = 105.0


def draw(count: int, variance: Fraction, source: Source) -> npt.NDArray[np.int64]:
    """`count` independent draws of variance μ = `variance`.

    Raises errors.ArgumentValueError for a variance that is not positive or beyond 2**20.
    """
    parts = _parts(variance)
    table = _table(variance / parts)
    values = table.draw(count, source)
    for _ in range(parts - 1):
        values += table.draw(count, source)
    return values


def distance(variance: Fraction) -> float:
    """A bound of the total variation distance of one draw from the exact distribution."""
    parts = _parts(variance)
    return parts * _table(variance / parts).distance


def _parts(variance: Fraction) -> int:
    if not 0 < variance <= LARGEST_VARIANCE:
        raise errors.ArgumentValueError(
            f"Skellam noise needs a variance above 0 and at most 2**20, not {float(variance):g}.",
            hint="Noise is counted in steps of the grid: choose a smaller scale, or the discrete Gaussian.",
        )
    return -(-variance // _TABLE_VARIANCE)


@lru_cache(maxsize=32)
def _table(variance: Fraction) -> Table:
    reach = _reach(float(variance))
    # b(k) stands for I_k(μ) times an unknown constant. Begun at one half beyond the reach with b = 1 unit and 0 after
    # it: the error of each probability is below the probability of where it began.
    start = reach + reach // 2 + 8
    half = [0] * (start + 2)
    half[start] = 1 << _WEIGHT_BITS
    twice, over = 2 * variance.denominator, variance.numerator
    for k in range(start, 0, -1):
        half[k - 1] = half[k + 1] + k * twice * half[k] // over
    weights = half[: reach + 1]
    return Table.of(-reach, [*weights[:0:-1], *weights], 8 * start * 2.0**-150)


def _reach(variance: float) -> int:
    """The least k for which Chernoff's bound exp(μ (cosh s - 1) - s k), sinh s = k/μ, is below exp(-105)."""

    def log_tail(k: int) -> float:
        s = math.asinh(k / variance)
        # cosh s - 1 without cancellation.
        return variance * 2 * math.sinh(s / 2) ** 2 - s * k

    low, high = 0, 1
    while log_tail(high) > -_TAIL:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if log_tail(middle) > -_TAIL else (low, middle)
    return high
