"""What a fit came to, for the label owner."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.linear.links import Link
from coterie.aggregation.whole_metrics import auc


@dataclass(frozen=True)
class LinearReport:
    """Both sides of a fit: on rows that were trained on, and on rows held out (None without any).

    loss, held_out_loss: the mean loss of a row; of "linear" the mean square, in the labels' own unit.
    auc, held_out_auc: the area under the ROC curve; None where labels are not 0 and 1.
    """

    loss: float
    held_out_loss: float | None
    auc: float | None
    held_out_auc: float | None


def report_of(
    link: Link,
    labels: NDArray[np.float64],
    scores: NDArray[np.float64],
    held_out: NDArray[np.bool_],
    unit: tuple[float, float],
) -> LinearReport:
    """labels: ``[rows]``, as they are. scores: ``[rows]``. held_out: ``[rows]``. unit: of the labels."""
    middle, scale = unit
    each = link.each((labels - middle) / scale, scores) * scale**2
    any_held = bool(held_out.any())
    area = auc if link.labels == "binary" else _none
    return LinearReport(
        float(each[~held_out].mean()),
        float(each[held_out].mean()) if any_held else None,
        area(scores[~held_out], labels[~held_out]),
        area(scores[held_out], labels[held_out]) if any_held else None,
    )


def _none(scores: NDArray[np.float64], labels: NDArray[np.float64]) -> float | None:
    return None
