"""The discrete Gaussian without any error: Canonne, Kamath and Steinke 2020, Algorithms 1 to 3, in rational numbers.

About ten thousand draws a second: the oracle that the tables are tested against, and for noise that is drawn once.
"""

from fractions import Fraction
from math import isqrt

from coterie import errors
from coterie.privacy.dp.noise.source import NoiseSource


def discrete_gaussian(variance: Fraction, source: NoiseSource) -> int:
    """One draw, exactly in proportion to exp(-x² / 2σ²). Raises errors.ArgumentValueError unless the variance is
    positive.
    """
    if variance <= 0:
        raise errors.ArgumentValueError("A discrete Gaussian needs a variance above 0.")
    scale = isqrt(variance.numerator // variance.denominator) + 1
    while True:
        found = discrete_laplace(scale, source)
        power = (abs(found) - variance / scale) ** 2 / (2 * variance)
        if bernoulli_exp(power, source):
            return found


def discrete_laplace(scale: int, source: NoiseSource) -> int:
    """One draw, exactly in proportion to exp(-|x| / scale), for a whole scale (Algorithm 2 with s = 1)."""
    while True:
        rest = source.below(scale)
        if not bernoulli_exp(Fraction(rest, scale), source):
            continue
        whole = 0
        while bernoulli_exp(Fraction(1), source):
            whole += 1
        size = rest + scale * whole
        negative = source.below(2) == 1
        if negative and size == 0:
            continue  # zero must not count twice
        return -size if negative else size


def bernoulli(chance: Fraction, source: NoiseSource) -> bool:
    """True with exactly this probability."""
    return source.below(chance.denominator) < chance.numerator


def bernoulli_exp(power: Fraction, source: NoiseSource) -> bool:
    """True with probability exp(-power), for a power of zero or more (Algorithm 1)."""
    while power > 1:
        if not _bernoulli_exp(Fraction(1), source):
            return False
        power -= 1
    return _bernoulli_exp(power, source)


def _bernoulli_exp(power: Fraction, source: NoiseSource) -> bool:
    count = 1
    while bernoulli(power / count, source):
        count += 1
    return count % 2 == 1
