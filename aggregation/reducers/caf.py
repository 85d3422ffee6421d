"""CAF, the covariance-bound agnostic filter: weigh down what lies far out along the direction of most variance.

Allouah, Guerraoui, Stephan: "Towards Trustworthy Federated Learning with Untrusted Participants" (2025), algorithm 2.
All weights begin at 1. While they sum to more than n − 2f, each is multiplied by 1 − τ_i / max τ, where τ_i is the
square of what the update differs from the weighted mean along the covariance's first eigenvector. The result is the
weighted mean at which the first eigenvalue was smallest. The maximum is over updates that still have weight, so each
step ends one and no more than 2f are taken. The eigenvectors come from the inner products, to rounding
(ByzFL takes one step of the power method from a random vector).
"""

import numpy as np

from coterie.aggregation.reducers.part import Combination
from coterie.aggregation.reducers.reducer import Vector
from coterie.aggregation.reducers.spectrum import largest_count
from coterie.protocol.arrays import Matrix

# Multiplications of the eigenvectors of up to 2f matrices: about a minute.
MOST_WORK = 1e11
# With more, no number of updates is within it.
MOST_ATTACKERS = 250


def caf(f: int) -> Combination:
    """The mean after updates far out along the direction of most variance are weighed down.

    f: how many attackers are allowed for; 2f < n, f at most 250.
    """

    def weights(products: Matrix) -> Vector:
        count = products.shape[0]
        weights: Vector = np.ones_like(np.diagonal(products))
        best: Vector = weights / count
        smallest = np.inf
        while weights.sum() > (count - 2 * f) * (1 + 1e-9):
            share: Vector = weights / weights.sum()
            variance, apart = _along_the_first(products, share)
            if variance < smallest:
                smallest, best = variance, share
            top = float(apart[weights > 0].max())
            if not top > 0:
                break
            weights = _weighed_down(weights, apart, top)
        return best

    return Combination(
        weights,
        fewest=2 * f + 1,
        most=largest_count(lambda count: 2.0 * f * count**3, MOST_WORK, 2 * f + 1),
        beyond=f"it looks for the main direction up to {2 * f} times, each with the cube of their number in work",
    )


def _weighed_down(weights: Vector, apart: Vector, top: float) -> Vector:
    # Those without weight may be any distance off.
    share = np.ones_like(weights)
    np.divide(apart, top, out=share, where=weights > 0)
    return weights * (1 - share)


def _along_the_first(products: Matrix, share: Vector) -> tuple[float, Vector]:
    """The covariance's first eigenvalue, and the squares of what each update differs from the mean along its vector,
    but for a factor.
    """
    inner = products @ share
    centred = products - inner[:, None] - inner[None, :] + share @ inner
    root = np.sqrt(share)
    values, vectors = np.linalg.eigh(root[:, None] * centred * root[None, :])
    return float(values[-1]), (centred @ (root * vectors[:, -1])) ** 2
