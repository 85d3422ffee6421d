"""Krum and Multi-Krum: follow the updates that lie closest to most others.

Blanchard, El Mhamdi, Guerraoui, Stainer: "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent"
(2017), section 4. An update's score is the sum of squared distances to its n − f − 1 nearest others (the paper takes
n − f − 2; ByzFL one more, as here, so that n = 2f + 1 has a neighbour to look at). Ties go to the first in order.
"""

import numpy as np
import numpy.typing as npt

from coterie.aggregation.reducers.part import Combination
from coterie.aggregation.reducers.reducer import Vector
from coterie.aggregation.reducers.source import distances
from coterie.protocol.arrays import Matrix


def scores(products: Matrix, attackers: int) -> Vector:
    """The score of each update, from the Gram matrix."""
    nearest = products.shape[0] - attackers
    # The first of each sorted row is the update itself, at distance zero.
    return np.sort(distances(products), axis=1)[:, 1:nearest].sum(axis=1)


def best(products: Matrix, attackers: int, count: int) -> npt.NDArray[np.intp]:
    """The places of the ``count`` updates with the lowest scores, in order."""
    return np.sort(np.argsort(scores(products, attackers), kind="stable")[:count])


def krum(f: int) -> Combination:
    """The one update with the lowest score.

    f: how many attackers are allowed for; 2f < n.
    """
    return multi_krum(f, 1)


def multi_krum(f: int, m: int = 0) -> Combination:
    """The mean of the m updates with the lowest scores; n − f of them when m is 0."""

    def weights(products: Matrix) -> Vector:
        chosen = best(products, f, m or products.shape[0] - f)
        among = np.zeros(products.shape[0])
        among[chosen] = 1.0 / chosen.size
        return among

    if m > 2 * f + 1:
        return Combination(weights, fewest=m, because=f"the best {m} of them are to be averaged")
    return Combination(weights, fewest=2 * f + 1)
