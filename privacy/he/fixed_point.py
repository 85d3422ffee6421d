"""Fractions as whole numbers: v stands for round(v 2**bits), of either sign, ties to even.

Sums of whole numbers are exact in any order, so what is added under encryption is bit for bit what is added in the
open.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import ArgumentValueError

_MOST_BITS = 62


def encode(values: NDArray[Any], bits: int) -> NDArray[np.int64]:
    """Fractions as whole numbers, each within 2**-(bits + 1) of its value.

    Raises ArgumentValueError (``plaintext_range``) for values that are not finite, or are 2**62 or more then.
    """
    scaled = np.rint(np.ldexp(np.asarray(values, np.float64), bits))
    if not bool((np.abs(scaled) < 2.0**_MOST_BITS).all()):
        raise ArgumentValueError(
            f"A value is not finite, or has no place in {_MOST_BITS} bits of which {bits} are the fraction.",
            hint="Scale the values down, or take fewer bits for the fraction.",
            code="plaintext_range",
        )
    return scaled.astype(np.int64)


def decode(numbers: Sequence[int], bits: int) -> NDArray[np.float64]:
    """The fractions that whole numbers stand for, the nearest float64 of each."""
    return np.array([number / (1 << bits) for number in numbers], np.float64)
