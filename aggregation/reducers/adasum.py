"""Adasum: add updates so that what they agree on is averaged and what is new in each is kept.

Maleki, Musuvathi, Mytkowicz, Saarikivi, Xu, Eksarevskiy, Ekanayake, Barsoum: "Scaling Distributed Training with
Adaptive Summation" (2021), section 3: for two, a (1 − a·b / 2‖a‖²) + b (1 − a·b / 2‖b‖²), and pairs of pairs up a
binary tree. Orthogonal updates are summed, equal ones averaged. No defence against attackers.
"""

import numpy as np

from coterie.aggregation.reducers.part import Combination
from coterie.aggregation.reducers.reducer import Vector
from coterie.protocol.arrays import Matrix


def adasum() -> Combination:
    """The tree pairs neighbours in the canonical order of the updates; an odd one out moves up as it is."""
    return Combination(_weights)


def _weights(products: Matrix) -> Vector:
    level = list(np.eye(products.shape[0]))
    while len(level) > 1:
        pairs = [_pair(a, b, products) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + ([level[-1]] if len(level) % 2 else [])
    return level[0]


def _pair(a: Vector, b: Vector, products: Matrix) -> Vector:
    dot, square_a, square_b = a @ products @ b, a @ products @ a, b @ products @ b
    # Beside a zero update there is nothing to agree on.
    left = 1 - dot / (2 * square_a) if square_a > 0 else 1.0
    right = 1 - dot / (2 * square_b) if square_b > 0 else 1.0
    return left * a + right * b
