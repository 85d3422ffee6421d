"""``m · 10^e`` to the nearest float64, for whole arrays, with a word on whether it is sure.

Where m and 10^|e| are both exact as float64, one multiplication or division is the correctly rounded answer (W. D.
Clinger, "How to read floating point numbers accurately", PLDI 1990). Elsewhere the product is taken in double-double
arithmetic (T. J. Dekker, "A floating-point technique for extending the available precision", 1971), whose error is
below 2^-100 of the result: unless the product is that close to the midpoint of two floats, rounding it is rounding the
number.
"""

from fractions import Fraction
from functools import cache

import numpy as np

from coterie.compute.ir import NDArray

MOST_EXACT = 22
"""The highest power of ten that a float64 holds exactly."""
MOST_SCALED = 270
"""Beyond it, parts of the product could leave the range of normal numbers."""
EXACT_BELOW = np.uint64(2**53)
EXACT_POWERS = np.array([10.0**power for power in range(MOST_EXACT + 1)])
# Splits a float64 into two halves of 26 bits (Veltkamp).
SPLITTER = 134217729.0
# Far above the error of the product (2^-46 of half a unit in the last place), far below anything that happens often.
MARGIN = 2.0**-40


def scaled(mantissa: NDArray, exponent: NDArray) -> tuple[NDArray, NDArray | None]:
    """``mantissa · 10^exponent`` rounded to nearest, ties to even.

    mantissa: uint64, below 10^19. exponent: int64, of a shape that is broadcast to the mantissa's. Returns values
    float64, and bool where a value is not sure, and means nothing; None where all are sure.
    """
    values = mantissa.astype(np.float64)
    lowest, highest = int(exponent.min(initial=0)), int(exponent.max(initial=0))
    if not lowest and not highest:
        # The conversion itself rounds correctly.
        return values, None
    near = -MOST_EXACT <= lowest and highest <= MOST_EXACT
    if not near or highest:
        power = EXACT_POWERS[np.minimum(np.abs(exponent), MOST_EXACT)]
        values = np.where(exponent < 0, values / power, values * power)
    else:
        values /= EXACT_POWERS[-exponent]
    if near and int(mantissa.max()) <= EXACT_BELOW:
        return values, None
    inexact = (mantissa > EXACT_BELOW) | (np.abs(exponent) > MOST_EXACT)
    exponents = np.broadcast_to(exponent, mantissa.shape)[inexact]
    values[inexact], inexact[inexact] = _by_double_double(mantissa[inexact], exponents)
    return values, inexact


def _by_double_double(mantissa: NDArray, exponent: NDArray) -> tuple[NDArray, NDArray]:
    high_powers, low_powers = _powers()
    place = np.clip(exponent, -MOST_SCALED, MOST_SCALED) + MOST_SCALED
    high_power, low_power = high_powers[place], low_powers[place]
    high = mantissa.astype(np.float64)
    low = (mantissa - high.astype(np.uint64)).view(np.int64).astype(np.float64)
    product, error = _two_product(high, high_power)
    tail = error + (high * low_power + low * high_power)
    value = product + tail
    # Exact, since the tail is the smaller of the two.
    missed = tail - (value - product)
    half = 0.5 * (value - np.nextafter(value, 0.0))
    sure = (np.abs(missed) < half * (1.0 - MARGIN)) & (np.abs(exponent) <= MOST_SCALED)
    return value, ~(sure | (mantissa == 0))


def _two_product(a: NDArray, b: NDArray) -> tuple[NDArray, NDArray]:
    """a · b as a float64 and its exact error."""
    product = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _halves(a: NDArray) -> tuple[NDArray, NDArray]:
    big = SPLITTER * a
    high = big - (big - a)
    return high, a - high


@cache
def _powers() -> tuple[NDArray, NDArray]:
    """10^-MOST_SCALED to 10^MOST_SCALED as sums of two float64."""
    exact = [Fraction(10) ** power for power in range(-MOST_SCALED, MOST_SCALED + 1)]
    high = [float(power) for power in exact]
    low = [float(power - Fraction(above)) for power, above in zip(exact, high, strict=True)]
    return np.array(high), np.array(low)
