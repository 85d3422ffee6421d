"""A bound of what one device contributes: its vector, shortened to a public norm."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors


@dataclass(frozen=True)
class ClippedVector:
    """A vector that is no longer than the bound.

    vector: float64, its norm at most the bound.
    shortened: whether it was longer, or not finite, before; known to the device alone, and as private as the vector.
    """

    vector: npt.NDArray[np.float64]
    shortened: bool


def clip(vector: npt.NDArray[Any], bound: float) -> ClippedVector:
    """The vector times min(1, bound / norm). Vectors that differ in one contribution then differ by at most `bound`.

    Guarantees: the Euclidean norm, as float64 computes it, is at most `bound`; the direction is kept; a vector with
    anything that is not finite becomes zeros before it is measured, so that it contributes nothing, says nothing and
    is noised like any other. Raises errors.ArgumentValueError unless the bound is positive and finite.
    """
    if not (bound > 0 and math.isfinite(bound)):
        raise errors.ArgumentValueError(f"The clipping norm must be above 0, not {bound:g}.")
    values = np.asarray(vector).astype(np.float64)
    norm, whole = _norm(values), True
    if not math.isfinite(norm):
        largest = float(np.abs(values).max())
        if not math.isfinite(largest):
            return ClippedVector(np.zeros_like(values), True)
        values *= 1.0 / largest  # the squares have overflowed
        norm, whole = _norm(values), False
    if norm <= bound and whole:
        return ClippedVector(values, False)
    factor = bound / norm
    held = values * factor
    while _norm(held) > bound:  # by a rounding of the last bit
        factor = math.nextafter(factor, 0.0)
        held = values * factor
    return ClippedVector(held, True)


def _norm(values: npt.NDArray[np.float64]) -> float:
    flat = values.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return math.sqrt(float(np.dot(flat, flat)))
