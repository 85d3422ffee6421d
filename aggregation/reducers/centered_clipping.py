"""Centred clipping: move by the mean of the updates' differences from where one is, each clipped.

Karimireddy, He, Jaggi: "Learning from History for Byzantine Robust Optimization" (2021), algorithm 2:
v ← v + mean of (x_i − v) min(1, tau / ‖x_i − v‖), from the aggregate of the round before, zero at first. v stays a
combination of that one and the updates.
"""

import numpy as np

from coterie.aggregation.reducers.part import Combination
from coterie.aggregation.reducers.reducer import Vector
from coterie.protocol.arrays import Matrix


def centered_clipping(tau: float = 100.0, iterations: int = 1) -> Combination:
    """The aggregate of the round before, moved by the mean of the updates' clipped differences from it.

    tau: the longest difference that counts in full.
    iterations: how often.

    Alone it is weak (a known attack lets every clipped difference point the same way); put nnm before it.
    """

    def weights(products: Matrix) -> Vector:
        squares = np.diagonal(products)
        at = np.zeros(squares.size)
        at[-1] = 1.0
        for _ in range(iterations):
            inner = products @ at
            apart = np.sqrt(np.maximum(squares - 2 * inner + at @ inner, 0.0))
            share = tau / np.maximum(apart, tau) / (squares.size - 1)
            # The last is where the round began, and no update.
            share[-1] = 0.0
            at = at * (1.0 - share.sum()) + share
        return at

    return Combination(weights, reference="previous")
