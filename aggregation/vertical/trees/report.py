"""What a training came to, for the label owner."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.evaluation.evaluation import (
    AnyEvaluation,
    ClassEvaluation,
    evaluate_classes,
    evaluate_numbers,
    stability,
)
from coterie.aggregation.evaluation.text import evaluation_text
from coterie.aggregation.vertical.trees.forest import Forest
from coterie.aggregation.vertical.trees.label_side import LabelState, best_tree
from coterie.aggregation.vertical.trees.losses import LOSSES
from coterie.aggregation.vertical.trees.terms import LossName
from coterie.protocol.arrays import ArraysByName


@dataclass(frozen=True)
class TreeReport:
    """Both sides of a training: on rows that trees were grown on, and on rows held out (None without any).

    losses, held_out_losses: the mean loss after each tree.
    train, held_out: what the predictions of the forest are worth, which ends at its best tree.
    stability: how far the predictions of rows held out lie from those of the others
        (`coterie.aggregation.evaluation.evaluation.stability`).
    """

    losses: tuple[float, ...]
    held_out_losses: tuple[float, ...] | None
    train: AnyEvaluation
    held_out: AnyEvaluation | None
    stability: float | None

    @property
    def auc(self) -> float | None:
        """The area under the ROC curve on rows that trees were grown on; None of numbers."""
        return _auc(self.train)

    @property
    def held_out_auc(self) -> float | None:
        """The same on rows held out; None without any."""
        return _auc(self.held_out)

    def text(self) -> str:
        """All figures, as tables."""
        both = {"train": self.train, **({} if self.held_out is None else {"held out": self.held_out})}
        told = "" if self.stability is None else f"\n\nstability index, held out against train: {self.stability:.4f}"
        return evaluation_text(both) + told


def report_of(kept: ArraysByName, loss: LossName) -> TreeReport:
    """kept: ``losses`` ``[trees, 2]``; ``margins`` after the best tree, ``labels`` and ``held_out`` ``[rows]``."""
    losses, held = kept["losses"], kept["held_out"].astype(np.bool_)
    predicted, labels = LOSSES[loss].shown(kept["margins"]), kept["labels"]
    return TreeReport(
        tuple(losses[:, 0].tolist()),
        tuple(losses[:, 1].tolist()) if held.any() else None,
        _evaluation(predicted[~held], labels[~held], loss),
        _evaluation(predicted[held], labels[held], loss) if held.any() else None,
        stability(predicted[~held], predicted[held]) if held.any() else None,
    )


def best_forest(state: LabelState) -> Forest:
    """The trees up to the one after which the loss on rows held out was least; all without such rows."""
    return replace(state.forest, trees=state.forest.trees[: best_tree(state) + 1])


def _evaluation(predicted: NDArray[np.float64], labels: NDArray[np.float64], loss: LossName) -> AnyEvaluation:
    return (evaluate_classes if loss == "logistic" else evaluate_numbers)(predicted, labels)


def _auc(evaluation: AnyEvaluation | None) -> float | None:
    return evaluation.auc if isinstance(evaluation, ClassEvaluation) else None
