"""What a model of several parties came to, for the label owner."""

from dataclasses import dataclass

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
from coterie.aggregation.vertical.tables import TableLabelKind


@dataclass(frozen=True)
class FitReport:
    """Both sides of a training: on rows that were trained on, and on rows held out (None without any).

    train, held_out: what the predictions are worth.
    stability: how far the predictions of rows held out lie from those of the others
        (`coterie.aggregation.evaluation.evaluation.stability`).
    losses, held_out_losses: of trees, the mean loss after each, up to the last that was grown.
    """

    train: AnyEvaluation
    held_out: AnyEvaluation | None
    stability: float | None
    losses: tuple[float, ...] = ()
    held_out_losses: tuple[float, ...] | None = None

    @property
    def auc(self) -> float | None:
        """The area under the ROC curve on rows that were trained on; None of numbers."""
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


def fit_report(
    predicted: NDArray[np.float64],
    labels: NDArray[np.float64],
    held_out: NDArray[np.bool_],
    kind: TableLabelKind,
    *,
    losses: tuple[float, ...] = (),
    held_out_losses: tuple[float, ...] | None = None,
) -> FitReport:
    """predicted, labels, held_out: ``[rows]``. kind: of the labels. losses, held_out_losses: as of `FitReport`."""
    evaluated = evaluate_classes if kind == "binary" else evaluate_numbers
    any_held = bool(held_out.any())
    return FitReport(
        evaluated(predicted[~held_out], labels[~held_out]),
        evaluated(predicted[held_out], labels[held_out]) if any_held else None,
        stability(predicted[~held_out], predicted[held_out]) if any_held else None,
        losses,
        held_out_losses,
    )


def _auc(evaluation: AnyEvaluation | None) -> float | None:
    return evaluation.auc if isinstance(evaluation, ClassEvaluation) else None
