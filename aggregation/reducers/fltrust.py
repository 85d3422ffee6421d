"""FLTrust: believe an update as far as it points where a trusted one points.

Cao, Fang, Liu, Gong: "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping" (2021), algorithm 2. With g
the update that the server trained on clean rows of its own, each update x_i is scaled to g's length and weighed by its
trust max(0, cos(x_i, g)).
"""

import numpy as np

from coterie import errors
from coterie.aggregation.reducers.part import Combination
from coterie.aggregation.reducers.reducer import Vector
from coterie.protocol.arrays import Matrix


def fltrust() -> Combination:
    """Needs the trusted update as ``aggregate(..., reference=...)``. Raises errors.UpdateRefused (``zero_weight``) when
    no update points its way at all.
    """
    return Combination(_weights, fewest=1, reference="trusted")


def _weights(products: Matrix) -> Vector:
    lengths = np.sqrt(np.diagonal(products))
    own, others = lengths[-1], lengths[:-1]
    apart = np.maximum(others, np.finfo(np.float64).tiny)
    trust = np.where(others > 0, np.maximum(products[:-1, -1], 0.0) / apart, 0.0)
    if not trust.sum() > 0:
        raise errors.UpdateRefused(
            f"None of the {others.size} updates points in the direction of the trusted one, so all were discarded.",
            hint="Check the rows that the trusted update was trained on.",
            code="zero_weight",
        )
    return np.append(trust / trust.sum() * own / apart, 0.0)
