"""The geometric median by smoothed Weiszfeld steps.

Pillutla, Kakade, Harchaoui: "Robust Aggregation for Federated Learning" (2022), algorithm 1. From z = 0, each step
makes z the mean of the updates, each weighed by 1 / max(nu, ‖x_i − z‖). z is a combination of the updates, so the steps
run on their inner products: ‖x_i − w X‖² = G_ii − 2 (G w)_i + w G w.
"""

import numpy as np

from coterie.aggregation.reducers.part import Combination
from coterie.aggregation.reducers.reducer import Vector
from coterie.protocol.arrays import Matrix


def geometric_median(nu: float = 1e-6, iterations: int = 100) -> Combination:
    """The point with the smallest sum of distances to the updates.

    nu: distances below it count as it.
    iterations: steps from zero.

    Breaks down only when half the updates lie.

    Many steps, which cost next to nothing on inner products: f updates of zero let go of z by a factor of only
    (n − f) / f a step, from nu on.
    """

    def weights(products: Matrix) -> Vector:
        squares = np.diagonal(products)
        at = np.zeros(products.shape[0])
        for _ in range(iterations):
            inner = products @ at
            apart = np.sqrt(np.maximum(squares - 2 * inner + at @ inner, 0.0))
            near = 1.0 / np.maximum(apart, nu)
            at = near / near.sum()
        return at

    return Combination(weights)
