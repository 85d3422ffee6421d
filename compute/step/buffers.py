"""Running statistics, which a model moves by itself while it trains."""

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.optim.optimizer import Arrays
from coterie.compute.step.precision import LARGEST, Precision


def buffers_after(active: Array, after: Arrays, before: Arrays, precision: Precision | None) -> dict[str, Array]:
    """Running statistics after a step: the new ones where the step counts, else the old ones, bit for bit.

    active: ``[1]``, 1 for a step that counts and 0 for one that does not; what that one gives may be infinite or NaN.
    after, before: by the names in ``before``.
    precision: of the step. In half precision a statistic that overflowed stays as it was, as the weights do.
    """
    kept: dict[str, Array] = {}
    for name, old in before.items():
        counts = active
        if precision is not None:
            counts = active * xp.astype(xp.less(xp.sum(xp.abs(after[name])), LARGEST), xp.float32)
        # A choice and not a product: 0 times infinity is NaN.
        kept[name] = xp.where(xp.greater(counts, 0.0), after[name], old)
    return kept
