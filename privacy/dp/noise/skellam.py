"""Skellam noise: the difference of two Poisson numbers of mean μ/2 each; its variance is μ (Agarwal, Kairouz and Liu
2021, arXiv:2110.04995). The sum of independent Skellam numbers is exactly one of the summed variance, which makes it
the natural noise of shares that are added.

P(k) = exp(-μ) I_|k|(μ). The modified Bessel functions come from their own recurrence I_(k-1) = I_(k+1) + (2k/μ) I_k,
run backwards from far outside (J. C. P. Miller's way) in whole numbers: all terms are positive, so nothing cancels. A
table (see table.py) serves variances up to 2**16; a larger one, up to 2**20, is drawn as a sum of equal parts.

What a sum costs (Theorem 3.5, for whole orders α): ε(α) ≤ αS/2μ + min {((2α - 1)S + 6L)/4μ², 3L/2μ} for the squared
sensitivity S, μ of the whole sum, and the L1 norm L ≤ min {√(dS), S} of d numbers.
"""

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.privacy.dp.events import Concentrated
from coterie.privacy.dp.noise.distribution import Distribution, Exposure
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.privacy.dp.noise.table import Table

LARGEST_VARIANCE = 1 << 20
_TABLE_VARIANCE = 1 << 16
_WEIGHT_BITS = 320
# exp(-105) < 2**-151: what lies beyond the table on one side.
_TAIL = 105.0


def draw(count: int, variance: Fraction, source: NoiseSource) -> npt.NDArray[np.int64]:
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


def _cost(exposure: Exposure) -> Concentrated:
    signal, noise = exposure.signal, exposure.contributors * exposure.variance
    absolute = min(math.sqrt(exposure.dimension * exposure.square), exposure.square)
    bounds = (
        (signal / 2 + signal / (2 * noise), max(0.0, (6 * absolute - exposure.square) / (4 * noise**2))),
        (signal / 2, 3 * absolute / (2 * noise)),
    )
    # Each holds for all orders; which is the less depends on the order, and what is asked in the end is seldom high.
    rho, xi = min(bounds, key=lambda bound: 8 * bound[0] + bound[1])
    return Concentrated(rho, xi, whole_orders=True)


def _tilt(half: float, signal: float, noise: float) -> float:
    """E exp(tX) = exp(μ (cosh t - 1)), at the best t of a grid."""
    tilts = (half / (signal + noise) * factor / 16 for factor in range(1, 33))
    return max(t * half - signal * t * t / 2 - noise * 2 * math.sinh(min(t, 60.0) / 2) ** 2 for t in tilts)


DISTRIBUTION = Distribution(
    how="Skellam noise, a share from every device, under secure aggregation",
    largest_variance=float(LARGEST_VARIANCE),
    draw=draw,
    distance=distance,
    cost=_cost,
    tilt=_tilt,
)
