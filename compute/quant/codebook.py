"""Quantisation that is not linear: numbers as codes of a table of centroids."""

from dataclasses import dataclass

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.quant.affine import extremes
from coterie.compute.quant.settings import check_bits

_SWEEPS = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class Codebook:
    """centroids: float32 [k], rising. codes: uint8, the nearest centroid of every number, in the shape of the tensor.

    A tensor of n numbers takes n · bits bits and k floats; codes are kept as bytes here. A runtime has no kernel for
    them: before a model is used, ``dequantise`` makes floats again.
    """

    centroids: NDArray
    codes: NDArray

    def dequantise(self) -> NDArray:
        """The numbers that the codes stand for, float32."""
        return self.centroids[self.codes]


def kmeans(x: NDArray, bits: int = 4) -> Codebook:
    """At most 2^bits centroids that are near to the numbers of ``x``, by Lloyd's algorithm from centroids at equal
    distances, which keeps the large weights (Han, Mao and Dally 2016, Deep compression, §3).

    Deterministic. The sum of squared errors is at most that of levels at equal distances from min to max, where the
    algorithm begins, since no sweep raises it. Raises InputError as :func:`symmetric`.
    """
    check_bits("kmeans", bits=bits)
    low, high = (float(part) for part in extremes(x, None))
    numbers, counts = np.unique(x.astype(np.float64), return_counts=True)
    # Sums over a run of sorted numbers are differences of these.
    total = np.concatenate([[0.0], np.cumsum(numbers * counts)])
    weight = np.concatenate([[0], np.cumsum(counts)])
    centroids = numbers if len(numbers) <= 1 << bits else np.linspace(low, high, 1 << bits)
    for _ in range(_SWEEPS):
        bounds = np.searchsorted(numbers, (centroids[1:] + centroids[:-1]) / 2, side="right")
        starts, ends = np.concatenate([[0], bounds]), np.concatenate([bounds, [len(numbers)]])
        held = weight[ends] - weight[starts]
        # A centroid that nothing is nearest to stays where it is.
        means = np.where(held > 0, (total[ends] - total[starts]) / np.maximum(held, 1), centroids)
        if np.array_equal(means, centroids):
            break
        centroids = means
    table = centroids.astype(np.float32)
    middles = (table[1:].astype(np.float64) + table[:-1]) / 2
    codes = np.searchsorted(middles, x.astype(np.float64), side="left").astype(np.uint8)
    return Codebook(centroids=table, codes=codes)
