"""How unlike the clients of a partition are, in numbers that papers use."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.arrays import Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class Skew:
    """Skew of labels and of sizes; labels that are unknown give zeros.

    emd: for each client, ``sum_c |p_k(c) - p(c)|`` between its class shares and those of all clients together, 0..2,
        called earth mover's distance by Zhao et al. (2018, "Federated learning with non-iid data").
    js: the Jensen-Shannon divergence of the same two, in bits, 0..1.
    size_deviation: standard deviation of the sizes over their mean.
    mean_emd, mean_js: weighted by the clients' sizes.
    """

    emd: tuple[float, ...]
    js: tuple[float, ...]
    mean_emd: float
    mean_js: float
    size_deviation: float

    @staticmethod
    def of(counts: NDArray[np.int64], sizes: Sequence[int]) -> "Skew":
        """The skew of counts ``[clients, classes]`` and sizes ``[clients]``."""
        rows = np.array(sizes, np.float64)
        own = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        overall = counts.sum(axis=0) / max(int(counts.sum()), 1)
        emd = np.abs(own - overall).sum(axis=1)
        middle = (own + overall) / 2
        js = (_divergence(own, middle) + _divergence(np.broadcast_to(overall, own.shape), middle)) / 2
        return Skew(
            emd=tuple(emd.tolist()),
            js=tuple(js.tolist()),
            mean_emd=float(np.average(emd, weights=rows)),
            mean_js=float(np.average(js, weights=rows)),
            size_deviation=float(rows.std() / rows.mean()),
        )


def _divergence(p: Vector, q: Vector) -> Vector:
    """Kullback-Leibler divergence of rows, in bits; where p is zero there is nothing to add."""
    ratio = np.divide(p, q, out=np.ones_like(q), where=p > 0)
    return (p * np.log2(ratio)).sum(axis=1)
