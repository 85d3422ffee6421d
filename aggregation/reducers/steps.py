"""What is done to updates before a rule sees them: bounds on their length, and mixing with others. Each gives the
matrix that mixes them, from their Gram matrix.
"""

import numpy as np

from coterie.aggregation.reducers.part import Combination, GeneratorFactory, MixingStep
from coterie.aggregation.reducers.reducer import Vector
from coterie.aggregation.reducers.source import distances
from coterie.protocol.arrays import Matrix

_TINY = float(np.finfo(np.float64).tiny)


def shrink(norms: Vector, bound: float) -> Vector:
    """What each update is multiplied by so that none is longer than the bound."""
    # The longest of the others may be zero; then nothing may have any length.
    return bound / np.maximum(norms, max(bound, _TINY))


def norm_bound(bound: float) -> MixingStep:
    """Updates longer than the bound are scaled down to it (Sun, Kairouz, Suresh, McMahan: "Can You Really Backdoor
    Federated Learning?", 2019, section 4).
    """
    return MixingStep(lambda products, draw: np.diag(shrink(np.sqrt(np.diagonal(products)), bound)))


def arc(f: int) -> MixingStep:
    """Adaptive robust clipping: the ⌊2 (f/n) (n − f)⌋ longest updates are scaled down to the longest of the others
    (Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan: "Adaptive Gradient Clipping for Robust Federated Learning",
    2025, algorithm 2).
    """

    def mix(products: Matrix, draw: GeneratorFactory) -> Matrix:
        count, norms = products.shape[0], np.sqrt(np.diagonal(products))
        clipped = int(2 * f / count * (count - f))
        return np.diag(shrink(norms, float(np.sort(norms)[count - clipped - 1])))

    return MixingStep(mix, fewest=2 * f + 1)


def nnm(f: int) -> MixingStep:
    """Nearest-neighbour mixing: each update becomes the mean of the n − f nearest to it, itself among them (Allouah,
    Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: "Fixing by Mixing", 2023, algorithm 2). Ties go to the first in
    order.
    """

    def mix(products: Matrix, draw: GeneratorFactory) -> Matrix:
        keep = products.shape[0] - f
        near = np.argsort(distances(products), axis=1, kind="stable")[:, :keep]
        mixed = np.zeros_like(products)
        np.put_along_axis(mixed, near, 1.0 / keep, axis=1)
        return mixed

    return MixingStep(mix, fewest=2 * f + 1)


def bucketing(s: int) -> MixingStep:
    """Means of random groups of s updates; the last may be smaller (Karimireddy, He, Jaggi: "Byzantine-Robust Learning
    on Heterogeneous Datasets via Bucketing", 2022, algorithm 1).

    The permutation is drawn from a digest of all updates, so the same updates give the same groups, and no client can
    know its group before all have sent. (Not from inner products: their last bits vary with order and machine.)
    """

    def mix(products: Matrix, draw: GeneratorFactory) -> Matrix:
        count = products.shape[0]
        places = draw().permutation(count)
        mixed = np.zeros((-(-count // s), count))
        for row, low in enumerate(range(0, count, s)):
            group = places[low : low + s]
            mixed[row, group] = 1.0 / group.size
        return mixed

    def before(count: int) -> int:
        return (count - 1) * s + 1

    return MixingStep(
        mix, before=before, because=f"of every {s} what follows sees one mean", up_to=lambda count: count * s
    )


def plain_mean() -> Combination:
    """The mean of what the steps before it made of the updates, each counted alike."""

    def weights(products: Matrix) -> Vector:
        return np.ones(products.shape[0], np.float64) / products.shape[0]

    return Combination(weights)
