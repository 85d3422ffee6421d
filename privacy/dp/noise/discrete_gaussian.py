"""The discrete Gaussian: whole numbers x with probability in proportion to exp(-x² / 2σ²) (Canonne, Kamath, Steinke
2020, arXiv:2004.00010). σ² is rational and everything up to the table is computed in whole numbers.

Up to σ = 256 one table (see table.py) holds every x whose probability matters to 144 bits. Beyond, with K a power of
two, X = K·Y + Z for Y of variance (σ² - 16K²)/K² and Z of deviation 4K is a discrete Gaussian of variance σ² but for a
factor between (1 - e)/(1 + e) and (1 + e)/(1 - e), e = 2 Σ exp(-2π²j²s²), 1/s² = 1/σ_Y² + 1/16 (the sum over a shifted
lattice is a theta function: Micciancio and Walter 2017, arXiv 2017/259). Here s² > 15.9, so e < 2**-450. Y may again be
such a sum.

How far the draws are from the exact distribution is `distance`, in total variation for each draw; it is charged to
delta: n draws that are used by an (ε, δ) mechanism make it (ε, δ + (1 + e**ε) · n · distance). `rejection.py` draws
without any distance, slowly, and is what this is tested against.

What a sum of n shares costs (Kairouz, Liu, Steinke 2021, arXiv:2102.06387, Theorem 1): ½ε²-concentrated, ε² = min
{S/nv + τd/2, (√(S/nv) + τ√d)²}, τ = 10 Σ_{k<n} exp(-2π²v k/(k+1)), for the squared sensitivity S of d numbers and
shares of variance v: a sum of discrete Gaussians is nearly one, and τ is by how much it is not.
"""

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.privacy.dp.events import Concentrated
from coterie.privacy.dp.noise.distribution import Distribution, Exposure
from coterie.privacy.dp.noise.fixed_point import exp_minus
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.privacy.dp.noise.table import GROUP, PRECISION, Table

LARGEST_DEVIATION = 1 << 40
"""The largest σ: sums of a few thousand draws still fit 64 bits by far."""
_TABLE_VARIANCE = 1 << 16
_LARGEST_FACTOR = 64
_WEIGHT_BITS = 320
# exp(-x²/2σ²) < 2**-146 beyond: x > 14.3 σ.
_REACH = Fraction(143, 10)


def draw(count: int, variance: Fraction, source: NoiseSource) -> npt.NDArray[np.int64]:
    """`count` independent draws of variance parameter σ² = `variance`.

    Raises errors.ArgumentValueError for a variance that is not positive or beyond 2**80.
    """
    _check(variance)
    if variance <= _TABLE_VARIANCE:
        return _table(variance).draw(count, source)
    factor = _factor(variance)
    outer, inner = _outer_variance(variance, factor), _table(Fraction(16 * factor * factor))
    values = np.empty(count, np.int64)
    for start in range(0, count, GROUP):
        part = values[start : start + GROUP]
        np.multiply(draw(part.size, outer, source), factor, out=part)
        part += inner.draw(part.size, source)
    return values


def distance(variance: Fraction) -> float:
    """A bound of the total variation distance of one draw from the exact distribution."""
    _check(variance)
    if variance <= _TABLE_VARIANCE:
        return _table(variance).distance
    factor = _factor(variance)
    return distance(_outer_variance(variance, factor)) + _table(Fraction(16 * factor * factor)).distance + 2.0**-440


def _check(variance: Fraction) -> None:
    if not 0 < variance <= LARGEST_DEVIATION**2:
        raise errors.ArgumentValueError(
            f"A discrete Gaussian needs a variance above 0 and at most 2**80, not {float(variance):g}.",
            hint="Noise is counted in steps of the grid: choose another scale.",
        )


def _factor(variance: Fraction) -> int:
    """K: the smallest power of two that brings Y within a table, or the largest that Z's table allows."""
    factor = 2
    while factor < _LARGEST_FACTOR and _outer_variance(variance, factor) > _TABLE_VARIANCE:
        factor *= 2
    return factor


def _outer_variance(variance: Fraction, factor: int) -> Fraction:
    """The variance of Y."""
    return (variance - 16 * factor * factor) / (factor * factor)


@lru_cache(maxsize=32)
def _table(variance: Fraction) -> Table:
    reach = int(_REACH * _root_above(variance)) + 1
    # w(k + 1) = w(k) · f(k), f(k + 1) = f(k) · exp(-1/σ²): each step loses less than a unit of 2**-320.
    weight, fall = 1 << _WEIGHT_BITS, exp_minus(1 / (2 * variance), _WEIGHT_BITS)
    steeper = exp_minus(1 / variance, _WEIGHT_BITS)
    half: list[int] = []
    for _ in range(reach):
        weight = weight * fall >> _WEIGHT_BITS
        fall = fall * steeper >> _WEIGHT_BITS
        half.append(weight)
    # Beyond the reach lies less than 2 exp(-reach²/2σ²) (Canonne et al., Corollary 12 with Fact 20), counted twice for
    # the normalisation; the weights' own rounding is below 2**-250.
    return Table.of(-reach, [*reversed(half), 1 << _WEIGHT_BITS, *half], 4 * 2.0 ** -(PRECISION + 2))


def _root_above(variance: Fraction) -> int:
    """The least whole number that is at least the root."""
    root = 1
    while root * root < variance:
        root *= 2
    low = root // 2
    while root - low > 1:
        middle = (root + low) // 2
        low, root = (low, middle) if middle * middle >= variance else (middle, root)
    return root


def _cost(exposure: Exposure) -> Concentrated:
    signal, dimension = exposure.signal, exposure.dimension
    tau = 10 * _theta(exposure.variance, exposure.contributors)
    squared = min(signal + tau * dimension / 2, (math.sqrt(signal) + tau * math.sqrt(dimension)) ** 2)
    return Concentrated(squared / 2)


def _theta(variance: float, contributors: int) -> float:
    """Σ exp(-2π²v k/(k+1)) for k from 1 to contributors - 1; all beyond the 64th are at most the 64th."""
    terms = [math.exp(-2 * math.pi**2 * variance * k / (k + 1)) for k in range(1, min(contributors, 65))]
    return sum(terms) + max(0, contributors - 65) * (terms[-1] if terms else 0.0)


def _tilt(half: float, signal: float, noise: float) -> float:
    """It is sub-Gaussian (Canonne et al. 2020, Fact 20)."""
    return half**2 / (2 * (signal + noise))


DISTRIBUTION = Distribution(
    how="discrete Gaussian noise, a share from every device, under secure aggregation",
    largest_variance=2.0**60,
    draw=draw,
    distance=distance,
    cost=_cost,
    tilt=_tilt,
)
