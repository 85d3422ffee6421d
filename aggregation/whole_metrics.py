"""Metrics of a whole set of rows, which no sum over examples gives: the coordinator takes them on its evaluation rows.

Each takes all predictions and all labels at once, and gives one number, or None where it is not defined. They are known
by name, so that a coordinator runs no researcher's code.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.evaluation.ranking import area, rank
from coterie.protocol.arrays import Vector

WholeMetricFunction: TypeAlias = Callable[[Vector, npt.NDArray[Any]], float | None]
"""(predictions ``[N]`` or ``[N, K]``, labels ``[N]``) → the metric; None where these labels do not define it."""

_BLOCK = 1024


def auc(prediction: Vector, label: npt.NDArray[Any]) -> float | None:
    """The area under the ROC curve; of more than two classes, the mean of each class against the rest by softmax. Ties
    count half. None where one side of a class has no row.
    """
    if prediction.ndim == 1:
        return _area(prediction, label == 1)
    if prediction.shape[1] == 2:
        return _area(prediction[:, 1] - prediction[:, 0], label == 1)
    powers = np.exp(prediction - prediction.max(1, keepdims=True))
    shares = powers / powers.sum(1, keepdims=True)
    areas = [_area(shares[:, number], label == number) for number in range(shares.shape[1])]
    found = [area for area in areas if area is not None]
    return float(np.mean(found)) if len(found) == len(areas) else None


def f1(prediction: Vector, label: npt.NDArray[Any]) -> float | None:
    """The harmonic mean of precision and recall of class 1; of more than two classes, the mean over the classes that
    are predicted or true. Of one logit, above 0 means class 1. None where no row is or is said to be of class 1.
    """
    said = (prediction > 0).astype(np.int64) if prediction.ndim == 1 else prediction.argmax(1)
    binary = prediction.ndim == 1 or prediction.shape[1] == 2
    classes = [1] if binary else np.union1d(said, label).tolist()
    counts = [(np.sum((said == one) & (label == one)), np.sum(said == one) + np.sum(label == one)) for one in classes]
    scores = [2 * float(hits) / float(both) for hits, both in counts if both]
    return float(np.mean(scores)) if scores else None


def c_index(prediction: Vector, label: npt.NDArray[Any]) -> float | None:
    """Harrell's concordance: of the pairs of rows whose order is known, the share in which the one with the greater
    predicted risk has its event first; equal risks count half. None without such a pair.

    label: the time of the event, or minus the time up to which nothing had happened (censored).
    """
    time, happened = np.abs(label).astype(np.float64), np.asarray(label) >= 0
    known, agreed = 0, 0.0
    for first in range(0, len(time), _BLOCK):
        rows = slice(first, first + _BLOCK)
        # A row that is censored at the very time of an event outlived it.
        later = (time[None] > time[rows, None]) | ((time[None] == time[rows, None]) & ~happened[None])
        pairs = later & happened[rows, None]
        risk = prediction[rows, None]
        known += int(pairs.sum())
        agreed += float((pairs & (risk > prediction[None])).sum() + (pairs & (risk == prediction[None])).sum() / 2)
    return agreed / known if known else None


def _area(score: Vector, positive: npt.NDArray[np.bool_]) -> float | None:
    return area(rank(score, positive).counts())


@dataclass(frozen=True)
class _Rule:
    measure: WholeMetricFunction
    classes: bool


_RULES: Mapping[str, _Rule] = MappingProxyType(
    {"auc": _Rule(auc, True), "f1": _Rule(f1, True), "c_index": _Rule(c_index, False)}
)
WHOLE_METRICS = tuple(_RULES)


def whole_metrics(names: tuple[str, ...], prediction: npt.NDArray[Any], label: npt.NDArray[Any]) -> dict[str, float]:
    """The metrics of these names that the rows define; the others are left out.

    prediction: ``[N]``, ``[N, 1]`` or ``[N, K]``.
    label: ``[N]``.
    Raises errors.InputError: ``metric_mismatch`` for other shapes, ``metric_invalid`` for predictions that are not
    finite.
    """
    check_prediction(names, prediction.shape)
    if not np.isfinite(prediction).all():
        raise errors.InputError(
            "The model predicts NaN or infinity, so no metric can be computed.",
            hint="The training diverged: lower the clients' or the server's learning rate.",
            code="metric_invalid",
        )
    scores = np.asarray(prediction, np.float64)
    scores = scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 1 else scores
    found = {name: _RULES[name].measure(scores, label) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def check_prediction(names: tuple[str, ...], shape: tuple[int, ...], label: tuple[int, ...] = ()) -> None:
    """Raise errors.InputError (``metric_mismatch``) where a metric cannot be taken of predictions of this shape.

    label: the shape of one row's label.
    """
    single = len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)
    for name in names:
        if label:
            raise errors.InputError(
                f"The metric {name!r} needs one label for each row; the schema's label has the shape {list(label)}.",
                hint="Leave it out of evaluation_metrics, and give a metric per example: metrics={...}.",
                code="metric_mismatch",
            )
        if not single and not (_RULES[name].classes and len(shape) == 2):
            wanted = "one number, or one for each class," if _RULES[name].classes else "one number, the risk,"
            raise errors.InputError(
                f"The metric {name!r} needs {wanted} for each row; the model gives {list(shape)}.",
                hint="Leave it out of evaluation_metrics, or change the model's last layer.",
                code="metric_mismatch",
            )
