"""Rounding to whole numbers at random, repeated until the vector is not much longer than before.

Plain random rounding may lengthen a vector of d coordinates by up to √d, which all would have to be hidden by noise.
Rounding again while the length is beyond a bound that most attempts stay within lets the bound be what is hidden
(Kairouz, Liu and Steinke 2021, arXiv:2102.06387, Proposition 22), at the price of a slight bias.
"""

import math

import numpy as np
import numpy.typing as npt

from coterie.privacy.dp.noise.source import NoiseSource
from coterie.privacy.dp.noise.table import GROUP

_ATTEMPTS = 64


def largest_square(norm: float, length: int) -> int:
    """The bound of the squared length after rounding, for a vector of that norm (in steps) before. With β = exp(-1/2):

    min { (norm + √d)²,  norm² + d/4 + √(2 ln 1/β) (norm + √d/2) }, and √(2 ln 1/β) = 1.

    An attempt stays within it with probability at least 1 - β = 0.39.
    """
    root = math.sqrt(length)
    return math.floor(min((norm + root) ** 2, norm**2 + length / 4 + norm + root / 2))


def round_within(vector: npt.NDArray[np.float64], square: int, source: NoiseSource) -> npt.NDArray[np.int64]:
    """Whole numbers whose squares sum to at most `square`, each coordinate up or down with its fraction's probability.

    vector: finite, in steps of the grid.
    square: at most 2**62. The bound holds whatever the vector, and is checked in whole numbers: after 64 attempts in
        vain (a chance below 2**-45 for a vector that `largest_square` was computed for) or for a longer vector, all is
        rounded towards zero, and what is longer even so becomes zero.
    """
    rounded = np.empty(vector.size, np.int64)
    for _ in range(_ATTEMPTS):
        if _attempt(vector, square, source, rounded):
            return rounded
    shortened = np.trunc(vector)
    if _squares(shortened, rounded, square) <= square:
        return rounded
    return np.zeros(vector.size, np.int64)


def _attempt(vector: npt.NDArray[np.float64], square: int, source: NoiseSource, rounded: npt.NDArray[np.int64]) -> bool:
    """Whether a rounding, left in `rounded`, stays within the bound."""
    total = 0
    for start in range(0, vector.size, GROUP):
        part = vector[start : start + GROUP]
        floor = np.floor(part)
        # What is released is held by the bound alone; the words decide only how near it comes. 2**-32 is near enough.
        floor += source.words32(part.size) < (part - floor) * 2.0**32
        total += _squares(floor, rounded[start : start + GROUP], square)
    return total <= square


def _squares(whole: npt.NDArray[np.float64], out: npt.NDArray[np.int64], square: int) -> int:
    """The exact sum of squares of whole numbers, left in `out`; more than `square` where it is beyond 64 bits."""
    if not float(np.dot(whole, whole)) <= 2.0**62:
        return square + 1
    out[:] = whole
    return int(np.dot(out, out))
