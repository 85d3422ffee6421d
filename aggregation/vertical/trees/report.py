"""What a training of trees came to, for the label owner."""

from dataclasses import replace

import numpy as np

from coterie.aggregation.vertical.report import FitReport, fit_report
from coterie.aggregation.vertical.trees.forest import Forest
from coterie.aggregation.vertical.trees.label_side import LabelState, best_tree
from coterie.aggregation.vertical.trees.losses import LOSSES
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.session_job import TreeLossName


def report_of(kept: ArraysByName, loss: TreeLossName) -> FitReport:
    """kept: ``losses`` ``[trees, 2]``; ``margins`` after the best tree, ``labels`` and ``held_out`` ``[rows]``."""
    losses, held = kept["losses"], kept["held_out"].astype(np.bool_)
    return fit_report(
        LOSSES[loss].shown(kept["margins"]),
        kept["labels"],
        held,
        LOSSES[loss].labels,
        losses=tuple(losses[:, 0].tolist()),
        held_out_losses=tuple(losses[:, 1].tolist()) if held.any() else None,
    )


def best_forest(state: LabelState) -> Forest:
    """The trees up to the one after which the loss on rows held out was least; all without such rows."""
    return replace(state.forest, trees=state.forest.trees[: best_tree(state) + 1])
