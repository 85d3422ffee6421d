"""Rules for each coordinate alone: median, trimmed mean, mean around the median.

Yin, Chen, Ramchandran, Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (2018),
definitions 1 and 2; Xie, Koyejo, Gupta: "Generalized Byzantine-tolerant SGD" (2018), section 4 (mean around the
median). Values arrive sorted, one lane for each coordinate.
"""

import numpy as np

from coterie.aggregation.reducers.part import ByCoordinate, Lanes
from coterie.aggregation.reducers.reducer import Vector


def median() -> ByCoordinate:
    """The middle value; the mean of the two in the middle when n is even."""
    return ByCoordinate(middle)


def trimmed_mean(f: int) -> ByCoordinate:
    """The mean without the f lowest and the f highest values; 2f < n."""

    def reduce(lanes: Lanes) -> Vector:
        kept = lanes[:, f : lanes.shape[1] - f]
        return kept.sum(axis=1, dtype=np.float64) / kept.shape[1]

    return ByCoordinate(reduce, fewest=2 * f + 1)


def meamed(f: int) -> ByCoordinate:
    """The mean of the n − f values nearest to the median; of two equally near the lower. 2f < n."""
    return ByCoordinate(lambda lanes: around_the_median(lanes, lanes.shape[1] - f), fewest=2 * f + 1)


def middle(lanes: Lanes) -> Vector:
    """The median of each sorted lane."""
    count = lanes.shape[1]
    return (lanes[:, (count - 1) // 2].astype(np.float64) + lanes[:, count // 2]) / 2


def around_the_median(lanes: Lanes, keep: int) -> Vector:
    """The mean of the ``keep`` values of each sorted lane that are nearest to its median.

    They are neighbours in the lane, so only where they begin is to be found: the window moves up past each value that
    is further from the median than the one that would come in.
    """
    count = lanes.shape[1]
    centre = middle(lanes)[:, None]
    first = np.sum(centre - lanes[:, : count - keep] > lanes[:, keep:] - centre, axis=1)[:, None]
    at = np.arange(count, dtype=np.intp)
    inside = (at >= first) & (at < first + keep)
    # What is outside may be anything up to the largest float, so it is left out and never added and subtracted.
    return np.where(inside, lanes, np.float32(0)).sum(axis=1, dtype=np.float64) / keep
