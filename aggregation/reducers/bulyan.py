"""Bulyan: choose updates by Krum, one after another, then the mean around the median of those chosen.

El Mhamdi, Guerraoui, Rouault: "The Hidden Vulnerability of Distributed Learning in Byzantium" (2018), section 4.
θ = n − 2f updates are chosen, each the Krum of those that are left; of each coordinate the β = θ − 2f values nearest to
the median are averaged.
"""

import numpy as np
import numpy.typing as npt

from coterie.aggregation.reducers.coordinates import around_the_median
from coterie.aggregation.reducers.krum import scores
from coterie.aggregation.reducers.part import ByCoordinate
from coterie.protocol.arrays import Matrix


def bulyan(f: int) -> ByCoordinate:
    """The mean around the median of updates that Krum chooses.

    f: how many attackers are allowed for; 4f + 3 ≤ n.
    """

    def choose(products: Matrix) -> npt.NDArray[np.intp]:
        left = np.arange(products.shape[0], dtype=np.intp)
        chosen: list[int] = []
        for _ in range(products.shape[0] - 2 * f):
            # A round of Krum among those left still allows for f attackers; the last few have too few neighbours for
            # that, and are ranked by the nearest one.
            allowed = min(f, max(left.size - 2, 0))
            first = int(np.argmin(scores(products[np.ix_(left, left)], allowed)))
            chosen.append(int(left[first]))
            left = np.delete(left, first)
        return np.sort(np.array(chosen, np.intp))

    return ByCoordinate(
        lambda lanes: around_the_median(lanes, lanes.shape[1] - 2 * f),
        4 * f + 3,
        choose,
        because="to allow for f attackers it takes 4f + 3, since it trims what it chose once more",
    )
