"""The local step: from losses of a batch to weights, optimizer state, running statistics and sums after it.

Plans, the roles of a split network and `Trainer` build their steps from these parts, so that a step is the same step
everywhere. Their names of tensors are those of plans. The public names are loaded on first use.
"""

from typing import TYPE_CHECKING

from coterie.compute.lazy import loader

if TYPE_CHECKING:
    from coterie.compute.step.precision import Precision as Precision
    from coterie.compute.step.precision import amp as amp
    from coterie.compute.step.step import TrainStep as TrainStep

_HOMES = {"Precision": "precision", "TrainStep": "step", "amp": "precision"}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]  the table above is the list

__getattr__ = loader(__name__, _HOMES)
