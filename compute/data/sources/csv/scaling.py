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
# How far from a float64 a number is still sure to be nearest to it, as a part of the power of two below: half a unit in
# the last place, less far more than the error of the product (2^-46 of that half) and far less than what happens often.
NEAREST = 2.0**-53 * (1.0 - 2.0**-40)
EXPONENT_BITS, ONE = np.uint64(0x7FF0000000000000), np.uint64(1)


def scaled(mantissa: NDArray, exponent: NDArray) -> tuple[NDArray, NDArray | None]:
    """``mantissa · 10^exponent`` rounded to nearest, ties to even.

    mantissa: uint64, below 10^19. exponent: int64, of the same shape. Returns values float64, and bool where a value is
    not sure, and means nothing; None where all are sure.
    """
    values = mantissa.astype(np.float64)
    lowest, highest = int(exponent.min(initial=0)), int(exponent.max(initial=0))
    if not lowest and not highest:
        # The conversion itself rounds correctly.
        return values, None
    near = -MOST_EXACT <= lowest and highest <= MOST_EXACT
    if near and not highest:
        values /= EXACT_POWERS.take(np.negative(exponent))
    else:
        power = EXACT_POWERS.take(np.minimum(np.abs(exponent), MOST_EXACT))
        values = np.where(exponent < 0, values / power, values * power)
    if near and int(mantissa.max()) <= EXACT_BELOW:
        return values, None
    inexact = mantissa > EXACT_BELOW
    if not near:
        inexact |= np.abs(exponent) > MOST_EXACT
    # To pick numbers out and put them back costs as much as to scale twice as many.
    chosen = slice(None) if 3 * np.count_nonzero(inexact) > inexact.size else inexact
    values[chosen], inexact[chosen] = _by_double_double(mantissa[chosen], exponent[chosen])
    return values, inexact


def _by_double_double(mantissa: NDArray, exponent: NDArray) -> tuple[NDArray, NDArray]:
    high_powers, low_powers = _powers()
    within = np.abs(exponent) <= MOST_SCALED
    place = (exponent if within.all() else np.where(within, exponent, 0)) + MOST_SCALED
    high_power, low_power = high_powers.take(place), low_powers.take(place)
    high = mantissa.astype(np.float64)
    low = (mantissa - high.astype(np.uint64)).view(np.int64).astype(np.float64)
    product, error = _two_product(high, high_power)
    tail = error + (high * low_power + low * high_power)
    value = product + tail
    # Exact, since the tail is the smaller of the two.
    missed = tail - (value - product)
    # The power of two below the value; infinite for a value of zero, which is exact.
    unit = ((value.view(np.uint64) - ONE) & EXPONENT_BITS).view(np.float64)
    return value, ~(within & (np.abs(missed) < unit * NEAREST))


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
