"""Minimum-diameter averaging: the mean of the n − f updates that lie closest together.

El Mhamdi, Guerraoui, Guirguis, Hoang, Rouault: "Genuinely Distributed Byzantine Machine Learning" (2020), section 3:
of all sets of n − f updates the one whose two farthest members are nearest to each other. Exact, without a look at
each set: a set is no wider than D when the f others touch every pair farther apart than D, so what is sought is the
smallest D at which f updates cover all such pairs. Ties go to the set that comes first in order.
"""

import numpy as np
import numpy.typing as npt

from coterie.aggregation.reducers.part import Combination
from coterie.aggregation.reducers.reducer import Vector
from coterie.aggregation.reducers.source import distances
from coterie.protocol.arrays import Matrix

Pairs = npt.NDArray[np.bool_]

# The search may double with every attacker, and an attacker chooses how hard it is.
MOST_ATTACKERS = 16
# Distances that differ by no more are one distance: sums in another order differ by so much.
ROUNDING = 1e-9


def mda(f: int) -> Combination:
    """The mean of the n − f updates that lie closest together.

    f: how many attackers are allowed for; 2f < n, f at most 16.
    """

    def weights(products: Matrix) -> Vector:
        count, apart = products.shape[0], distances(products)
        steps = np.unique(np.append(apart[np.triu_indices(count, 1)], 0.0)) * (1 + ROUNDING)
        low, high = 0, steps.size - 1
        while low < high:
            middle = (low + high) // 2
            if covered(apart > steps[middle], f):
                high = middle
            else:
                low = middle + 1
        among = np.zeros(count, np.float64)
        among[_first_set(apart > steps[low], f)] = 1.0 / (count - f)
        return among

    return Combination(weights, fewest=2 * f + 1)


def covered(far: Pairs, budget: int) -> bool:
    """Whether ``budget`` updates touch every pair that is far apart.

    far: symmetric, with an empty diagonal.
    """
    touched = far.any(axis=1)
    far = far[np.ix_(touched, touched)]
    degrees = far.sum(axis=1)
    if not degrees.size:
        return True
    most = int(degrees.max())
    # No update touches more than ``most`` pairs.
    if degrees.sum() > 2 * budget * most:
        return False
    if most == 1:
        return True
    # Either the one with the most pairs is left out, or all that are far from it.
    top = int(np.argmax(degrees))
    return covered(_remaining(far, np.arange(far.shape[0], dtype=np.intp) == top), budget - 1) or (
        most <= budget and covered(_remaining(far, far[top]), budget - most)
    )


def _remaining(far: Pairs, out: npt.NDArray[np.bool_]) -> Pairs:
    return far[np.ix_(~out, ~out)]


def _first_set(far: Pairs, budget: int) -> npt.NDArray[np.intp]:
    """The first set in order that leaves out ``budget`` updates and no pair that is far apart."""
    count = far.shape[0]
    out, chosen = np.zeros(count, np.bool_), list[int]()
    for place in range(count):
        if out[place] or len(chosen) == count - budget:
            continue
        against = far[place] & ~out
        room = budget - int(out.sum()) - int(against.sum())
        rest = ~(out | against)
        rest[: place + 1] = False
        if room >= 0 and covered(far[np.ix_(rest, rest)], room):
            out |= against
            chosen.append(place)
        else:
            out[place] = True
    return np.array(chosen, np.intp)
