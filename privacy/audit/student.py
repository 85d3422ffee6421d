"""The noncentral t distribution, without a statistics library: that of a mean over its own standard error, when the
true mean is not zero.

T = (Z + shift) / S with Z standard normal and S² a χ² of `freedom` degrees over its degrees. Given S = s the tail is
that of a normal number, so P[T ≥ t] = E[Φ(shift − t S)], an integral over s that is cut where Φ turns.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from coterie import errors

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)
_FAR = 12.0
"""Standard deviations beyond which nothing is left that float64 could hold."""
LARGEST = 1e7
"""A statistic beyond this counts as this: nothing that was measured is so sure."""


def upper_tail(statistic: float, freedom: int, shift: float) -> float:
    """P[T ≥ statistic], for a statistic of at least 0. Raises errors.ArgumentValueError for one that is below, or for
    no degree of freedom.
    """
    if freedom < 1 or not statistic >= 0:
        raise errors.ArgumentValueError(
            f"The tail needs a statistic of at least 0 and one or more degrees of freedom, not {statistic}, {freedom}."
        )
    held = min(statistic, LARGEST)
    spread = 1 / math.sqrt(2 * freedom)
    low, high = max(0.0, 1 - _FAR * spread), 1 + _FAR * spread
    turn = [] if held == 0 else [(shift - _FAR) / held, shift / held, (shift + _FAR) / held]
    # Twice as many pieces where the density itself bends.
    inner = [1 - 4 * spread, 1.0, 1 + 4 * spread]
    edges = [low, *sorted(edge for edge in (*turn, *inner) if low < edge < high), high]
    pieces = zip(edges, edges[1:], strict=False)
    return min(1.0, sum(_partial_integral(held, freedom, shift, start, stop) for start, stop in pieces))


def critical(freedom: int, shift: float, mistake: float) -> float:
    """The least statistic whose upper tail is at most `mistake`, 0 where that is all of them."""
    return _crossing(lambda t: upper_tail(t, freedom, shift) > mistake, abs(shift) + 2)


def least_shift(statistic: float, freedom: int, mistake: float) -> float:
    """A lower bound of the shift behind a statistic, wrong with a probability of at most `mistake`; 0 where none above
    it can be told.
    """
    if statistic <= 0:
        return 0.0
    return _crossing(lambda shift: upper_tail(statistic, freedom, shift) < mistake, min(statistic, LARGEST) + 2)


def _partial_integral(statistic: float, freedom: int, shift: float, start: float, stop: float) -> float:
    """The part of the integral from `start` to `stop`, by Gauss and Legendre."""
    half = (stop - start) / 2
    s: npt.NDArray[np.float64] = start + half * (_NODES + 1)
    logs = (
        0.5 * freedom * math.log(freedom / 2)
        + math.log(2)
        - math.lgamma(freedom / 2)
        + (freedom - 1) * np.log(s)
        - 0.5 * freedom * s * s
    )
    normal = [0.5 * math.erfc((statistic * one - shift) / math.sqrt(2)) for one in s.tolist()]
    return float(half * (_WEIGHTS * np.exp(logs) * np.array(normal)).sum())


def _crossing(below: Callable[[float], bool], guess: float) -> float:
    """Where `below` stops to hold, to a billionth of it; 0 where it never does."""
    if not below(0.0):
        return 0.0
    low, high = 0.0, guess
    while below(high):
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if below(middle) else (low, middle)
    return low
