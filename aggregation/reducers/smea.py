"""SMEA: the mean of the n − f updates whose covariance has the smallest first eigenvalue.

Allouah, Guerraoui, Gupta, Pinot, Stephan: "On the Privacy-Robustness-Utility Trilemma in Distributed Learning" (2023),
section 4. Every set of n − f updates is looked at. The eigenvalues come from the inner products, to rounding (ByzFL
takes one step of the power method from a random vector). Ties go to the set that comes first in order.
"""

import math
from collections.abc import Iterator
from itertools import combinations, islice

import numpy as np
import numpy.typing as npt

from coterie.aggregation.reducers.part import Combination
from coterie.aggregation.reducers.reducer import Vector
from coterie.aggregation.reducers.spectrum import largest_count
from coterie.protocol.arrays import Matrix

# Sets times the cube of their size: some ten seconds.
MOST_WORK = 1e9
# With more, no number of updates is within it.
MOST_ATTACKERS = 10
# Numbers of a batch of matrices.
BATCH = 1 << 22
# Eigenvalues that differ by no more are one: sums in another order differ by so much.
ROUNDING = 1e-9


def smea(f: int) -> Combination:
    """The mean of the n − f updates whose covariance has the smallest first eigenvalue.

    f: how many attackers are allowed for; 2f < n, f at most 10, and n as small as the number of sets demands.
    """

    def weights(products: Matrix) -> Vector:
        count = products.shape[0]
        if f == 0:
            return np.ones(count, np.float64) / count
        among, smallest, best = np.zeros(count, np.float64), np.inf, np.arange(count - f, dtype=np.intp)
        for sets in _batches(count, count - f):
            found = _first_eigenvalues(products, sets, smallest)
            place = int(np.argmax(found <= found.min() * (1 + ROUNDING)))
            if found[place] < smallest * (1 - ROUNDING):
                smallest, best = found[place], sets[place]
        among[best] = 1.0 / (count - f)
        return among

    return Combination(
        weights,
        fewest=2 * f + 1,
        most=largest_count(lambda count: (f > 0) * math.comb(count, f) * (count - f) ** 3.0, MOST_WORK, 2 * f + 1),
        beyond="it looks at every set of n − f updates",
    )


def _batches(count: int, size: int) -> Iterator[npt.NDArray[np.intp]]:
    every = combinations(range(count), size)
    while batch := list(islice(every, max(BATCH // size**2, 1))):
        yield np.array(batch, np.intp)


def _first_eigenvalues(products: Matrix, sets: npt.NDArray[np.intp], limit: float) -> Vector:
    """The largest eigenvalue of each set's covariance, times the set's size; infinity where it must be above the limit
    or another set's.
    """
    inner = products[sets[:, :, None], sets[:, None, :]]
    rows = inner.mean(axis=2, keepdims=True)
    centred = inner - rows - rows.transpose(0, 2, 1) + rows.mean(axis=1, keepdims=True)
    # The sum of squared eigenvalues is at most the largest times the sum of all. Where updates are equal, rounding can
    # leave that sum below the root of the squares, or below zero.
    sums, squares = np.trace(centred, axis1=1, axis2=2), (centred**2).sum(axis=(1, 2))
    least = squares / np.maximum(np.maximum(sums, np.sqrt(squares)), np.finfo(np.float64).tiny)
    sample = np.linalg.eigvalsh(centred[int(np.argmin(least))])[-1]
    near = least <= max(min(limit, sample), 0.0) * (1 + 2 * ROUNDING)
    near[int(np.argmin(least))] = True
    found = np.full(sums.size, np.inf)
    found[near] = np.maximum(np.linalg.eigvalsh(centred[near])[:, -1], 0.0)
    return found
