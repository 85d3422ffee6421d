"""Gaussian noise for numbers in floating point that gives nothing away by its low bits.

A float's rounding depends on what is hidden, and a sampler in floats reaches only some of the floats: both have been
used to read the noise off (Mironov 2012; Haney et al. 2022, arXiv:2207.13793). So nothing here is drawn in floats. The
vector is moved to the multiples of a grid, a power of two about 2**-22 of the deviation; a discrete Gaussian of the
same deviation (see discrete_gaussian.py) is added in whole numbers; and the sum, which float64 holds exactly, is what
is released. Rounding moves each coordinate by at most half a step, so that two sums `clip` apart may be
`sensitivity(clip, …)` apart afterwards: that is what the accountant is given. A discrete Gaussian costs no more Rényi
privacy than the Gaussian of its deviation (Canonne et al. 2020, Theorem 4 for one coordinate, and by addition for all).
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.privacy.dp.noise import discrete_gaussian
from coterie.privacy.dp.noise.source import NoiseSource

_STEPS = 22
"""The deviation holds 2**22 to 2**23 steps of the grid."""
_LARGEST = 2.0**52


def grid(deviation: float) -> float:
    """The step of the grid: a power of two. Raises errors.ArgumentValueError for a deviation outside 1e-30 … 1e30."""
    if not 1e-30 <= deviation <= 1e30:
        raise errors.ArgumentValueError(
            f"The standard deviation of noise must be between 1e-30 and 1e30, not {deviation:g}.",
            hint="Choose a clipping norm and noise multiplier that are neither tiny nor huge.",
        )
    return math.ldexp(1.0, math.frexp(deviation)[1] - 1 - _STEPS)


def sensitivity(clip: float, deviation: float, length: int) -> float:
    """How far apart (L2) two sums of `length` coordinates may be on the grid when they were `clip` apart."""
    return clip + grid(deviation) * math.sqrt(length)


def noise(key: bytes, length: int, deviation: float) -> npt.NDArray[np.float64]:
    """`length` independent draws, multiples of `grid(deviation)`. The same key (32 bytes) gives the same noise, so that
    a job that is begun again draws what it drew before: a key serves one vector and is then forgotten.
    """
    return _steps(NoiseSource(key), length, deviation).astype(np.float64) * grid(deviation)


def add(vector: npt.NDArray[np.floating[Any]], deviation: float, source: NoiseSource) -> npt.NDArray[np.float64]:
    """The vector on the grid with noise: what may be released.

    Raises errors.InternalError for numbers that are not finite or beyond 2**52 steps: clipping comes before.
    """
    step = grid(deviation)
    moved: npt.NDArray[np.float64] = np.rint(vector.astype(np.float64) / step)
    if not (np.abs(moved) <= _LARGEST).all():
        raise errors.InternalError(
            "Noise was asked for a vector that is not finite, or huge compared with the noise.",
            hint="Every contribution is clipped before it is summed.",
        )
    moved += _steps(source, vector.size, deviation)
    moved *= step
    return moved


def _steps(source: NoiseSource, length: int, deviation: float) -> npt.NDArray[np.int64]:
    variance = Fraction(deviation / grid(deviation)) ** 2
    return discrete_gaussian.draw(length, variance, source)
