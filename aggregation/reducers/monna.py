"""MoNNA: the mean of the trusted update and of those nearest to it.

Farhadkhani, Guerraoui, Gupta, Hoang, Pinot, Stephan: "Robust Collaborative Learning with Linear Gradient Overhead"
(2023), algorithm 1. Of n updates, the trusted one among them, the n − f nearest to the trusted one are averaged. In the
paper every node trusts its own. Ties go to the first in order.
"""

import numpy as np

from coterie.aggregation.reducers.part import Combination
from coterie.aggregation.reducers.reducer import Vector
from coterie.aggregation.reducers.source import distances
from coterie.protocol.arrays import Matrix


def monna(f: int) -> Combination:
    """The mean of the trusted update and of those nearest to it.

    f: how many attackers are allowed for; 2f < n, with the trusted update counted.

    Needs the trusted update as ``aggregate(..., reference=...)``; it is averaged too.
    """

    def weights(products: Matrix) -> Vector:
        keep = products.shape[0] - f
        apart = distances(products)[-1]
        # Updates equal to the trusted one must not push it out.
        apart[-1] = -1.0
        among = np.zeros(apart.size)
        among[np.argsort(apart, kind="stable")[:keep]] = 1.0 / keep
        return among

    return Combination(weights, fewest=max(2 * f, 1), reference="trusted")
