"""What a training came to, for the label owner."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.trees.forest import Forest
from coterie.aggregation.vertical.trees.label_side import LabelState, best_tree
from coterie.aggregation.whole_metrics import auc
from coterie.protocol.arrays import ArraysByName


@dataclass(frozen=True)
class TreeReport:
    """Both sides of a training: on rows that trees were grown on, and on rows held out (None without any).

    losses, held_out_losses: the mean loss after each tree.
    auc, held_out_auc: the area under the ROC curve after the last tree; None where labels are not 0 and 1.
    """

    losses: tuple[float, ...]
    held_out_losses: tuple[float, ...] | None
    auc: float | None
    held_out_auc: float | None


def report_of(kept: ArraysByName) -> TreeReport:
    """kept: ``losses`` ``[trees, 2]``, ``margins``, ``labels`` and ``held_out`` ``[rows]``."""
    losses, held = kept["losses"], kept["held_out"].astype(np.bool_)
    return TreeReport(
        tuple(losses[:, 0].tolist()),
        tuple(losses[:, 1].tolist()) if held.any() else None,
        _auc(kept["margins"][~held], kept["labels"][~held]),
        _auc(kept["margins"][held], kept["labels"][held]) if held.any() else None,
    )


def best_forest(state: LabelState) -> Forest:
    """The trees up to the one after which the loss on rows held out was least; all without such rows."""
    return replace(state.forest, trees=state.forest.trees[: best_tree(state) + 1])


def _auc(margins: NDArray[np.float64], labels: NDArray[np.float64]) -> float | None:
    return auc(margins, labels) if bool(np.isin(labels, (0.0, 1.0)).all()) else None
