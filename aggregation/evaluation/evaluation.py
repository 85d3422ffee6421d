"""What predictions of rows are worth: all figures of them as one value, for labels 0 and 1 and for numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.evaluation.metrics import METRICS, LabelKind, are_chances
from coterie.aggregation.evaluation.ranking import bands_of, best_cut, rank
from coterie.aggregation.evaluation.rows import class_labels, numbers_of, row_weights
from coterie.errors import ArgumentValueError
from coterie.protocol.arrays import Vector
from coterie.protocol.conversion import to_json

BANDS = 10
MOST_BANDS = 1000


@dataclass(frozen=True)
class ScoreBand:
    """Rows whose scores lie next to one another, about as many in each band; equal scores are in one.

    lowest, highest, mean: of the scores.
    weight: how many rows there are, by their weights. ones: how many of label 1.
    rate: the share of label 1 among them; a model is calibrated where it is the mean score.
    lift: the rate, divided by that of all rows. None where no row has label 1.
    reach, gain: of this band and all above it: the share of all rows, and of those of label 1 (None without any).
    """

    lowest: float
    highest: float
    mean: float
    weight: float
    ones: float
    rate: float
    lift: float | None
    reach: float
    gain: float | None


@dataclass(frozen=True)
class AtThreshold:
    """What comes of saying 1 from a score on. Four counts by weights, and their ratios; None where one divides by 0."""

    threshold: float
    true_ones: float
    false_ones: float
    false_zeros: float
    true_zeros: float
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class ClassEvaluation:
    """Scores of rows with labels 0 and 1. None where these rows do not define a figure.

    rows: how many. ones: the share of label 1, by weights.
    auc: the area under the ROC curve. ks: the largest distance of the two classes' distributions of scores.
    ks_threshold: the score from which on rows are most apart from those below.
    average_precision: the area under the curve of precision and recall.
    log_loss, brier, calibration_error: of chances alone, so None where a score is not in 0 to 1; log_loss too where a
        chance is 0 for what has happened. calibration_error is the mean distance of a band's rate from its mean score.
    bands: the highest scores first. thresholds: as they were asked for.
    """

    rows: int
    ones: float
    auc: float | None
    ks: float | None
    ks_threshold: float | None
    average_precision: float | None
    log_loss: float | None
    brier: float | None
    calibration_error: float | None
    bands: tuple[ScoreBand, ...]
    thresholds: tuple[AtThreshold, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return to_json(self)

    def figures(self) -> dict[str, float | None]:
        """Those that are one number, by name."""
        return _single(self)


@dataclass(frozen=True)
class NumberEvaluation:
    """Predictions of numbers or counts. None where these rows do not define a figure.

    rows: how many. mean: of the labels, by weights.
    rmse: the root of the mean squared error. mae: the mean absolute error.
    r2: the share of the labels' variance that is explained; None where they are all one number.
    poisson_deviance: the mean one; None where a label is negative, or a prediction is not above 0.
    """

    rows: int
    mean: float
    rmse: float | None
    mae: float | None
    r2: float | None
    poisson_deviance: float | None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return to_json(self)

    def figures(self) -> dict[str, float | None]:
        """Those that are one number, by name."""
        return _single(self)


AnyEvaluation = ClassEvaluation | NumberEvaluation


def evaluate_classes(
    scores: NDArray[Any],
    labels: NDArray[Any],
    weights: NDArray[Any] | None = None,
    *,
    bands: int = BANDS,
    thresholds: Sequence[float] = (0.5,),
) -> ClassEvaluation:
    """All figures of scores of rows with labels 0 and 1.

    scores: ``[rows]``, larger where label 1 is likelier; chances, for what needs them (see `coterie.aggregation.
        evaluation.rows.chances`).
    labels: ``[rows]``. weights: ``[rows]``, how often each row counts; once when not given.
    bands: of how many the table is, at most. thresholds: from which scores on to say 1.
    Raises DataError for rows that cannot be; ArgumentValueError for bands or thresholds that cannot.
    """
    if not 1 <= bands <= MOST_BANDS or not np.isfinite(thresholds).all():
        raise ArgumentValueError(f"bands are 1 to {MOST_BANDS}, and thresholds finite numbers.")
    scores = numbers_of(scores, "scores")
    labels = class_labels(labels, "labels", len(scores))
    rows, weights = len(scores), row_weights(weights, len(scores))
    if weights is not None:
        # A row that counts for nothing must not make a place among scores.
        counted = weights > 0
        scores, labels, weights = scores[counted], labels[counted], weights[counted]
    ranking = rank(scores, labels == 1)
    counts = ranking.counts(weights)
    cut = best_cut(counts)
    found = _bands(ranking.scores, counts, bands)
    whole = float(counts.sum())
    error = sum(band.weight * abs(band.rate - band.mean) for band in found) / whole
    return ClassEvaluation(
        rows=rows,
        ones=float(counts[1].sum()) / whole,
        ks_threshold=None if cut is None else float(ranking.scores[cut]),
        calibration_error=error if are_chances(scores) else None,
        bands=found,
        thresholds=tuple(_at(float(threshold), ranking.scores, counts) for threshold in thresholds),
        **_measured("classes", scores, labels, weights),
    )


def evaluate_numbers(
    predictions: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any] | None = None
) -> NumberEvaluation:
    """All figures of predictions of numbers, or of counts. Arguments and errors as of `evaluate_classes`."""
    predictions = numbers_of(predictions, "scores")
    labels = numbers_of(labels, "labels", len(predictions))
    weights = row_weights(weights, len(predictions))
    mean = float(np.average(labels, weights=weights))
    return NumberEvaluation(len(labels), mean, **_measured("numbers", predictions, labels, weights))


def stability(expected: NDArray[Any], actual: NDArray[Any], *, bands: int = BANDS) -> float | None:
    """The population stability index: how far the scores of one set of rows have moved from those of another.

    The sum over bands of (p - q) ln(p / q), p and q being the shares of a band's scores among the two. Below 0.1 is
    commonly taken for stable and above 0.25 for moved. Of few rows it is above 0 by chance alone: by about
    (bands - 1) (1 / n + 1 / m). A band that has no actual score counts as if it had half of one.

    expected: scores that say where bands are, about as many in each, such as those trained on, ``[n]``.
    actual: the scores to compare, ``[m]``.
    bands: at most; equal scores are in one.
    None where all expected scores are one number. Raises DataError.
    """
    scores, counts = np.unique(numbers_of(expected, "expected"), return_counts=True)
    band = bands_of(counts.astype(np.float64), bands)
    tops = scores[np.flatnonzero(np.append(band[1:] > band[:-1], True))]
    if len(tops) < 2:
        return None
    shares = [
        np.bincount(np.searchsorted(tops[:-1], given, side="left"), minlength=len(tops))
        for given in (numbers_of(expected, "expected"), numbers_of(actual, "actual"))
    ]
    p, q = (np.maximum(found, 0.5) / found.sum() for found in shares)
    return float((p - q) @ np.log(p / q))


def _measured(labels: LabelKind, scores: Vector, truth: Vector, weights: Vector | None) -> dict[str, float | None]:
    return {name: metric.prepare(scores, truth)(weights) for name, metric in METRICS.items() if metric.labels == labels}


def _bands(scores: Vector, counts: NDArray[np.float64], bands: int) -> tuple[ScoreBand, ...]:
    """scores, counts: of places, the lowest first."""
    from_top = counts[:, ::-1].sum(axis=0)
    band = bands_of(from_top, bands)[::-1]
    rows, ones = counts.sum(), counts[1].sum()
    found: list[ScoreBand] = []
    above = ones_above = 0.0
    for number in np.unique(band):
        here = np.flatnonzero(band == number)
        weight, of_one = float(counts[:, here].sum()), float(counts[1, here].sum())
        above, ones_above = above + weight, ones_above + of_one
        found.append(
            ScoreBand(
                lowest=float(scores[here[0]]),
                highest=float(scores[here[-1]]),
                mean=float(counts[:, here].sum(axis=0) @ scores[here]) / weight,
                weight=weight,
                ones=of_one,
                rate=of_one / weight,
                lift=of_one / weight / (ones / rows) if ones else None,
                reach=above / rows,
                gain=ones_above / ones if ones else None,
            )
        )
    return tuple(found)


def _at(threshold: float, scores: Vector, counts: NDArray[np.float64]) -> AtThreshold:
    first = int(np.searchsorted(scores, threshold, side="left"))
    (true_zeros, false_zeros), (false_ones, true_ones) = (
        part.sum(axis=1).tolist() for part in (counts[:, :first], counts[:, first:])
    )
    said, true = true_ones + false_ones, true_ones + false_zeros
    return AtThreshold(
        threshold,
        true_ones=true_ones,
        false_ones=false_ones,
        false_zeros=false_zeros,
        true_zeros=true_zeros,
        precision=true_ones / said if said else None,
        recall=true_ones / true if true else None,
        f1=2 * true_ones / (said + true) if said + true else None,
    )


def _single(evaluation: AnyEvaluation) -> dict[str, float | None]:
    found: Mapping[str, Any] = vars(evaluation)
    return {name: value for name, value in found.items() if not isinstance(value, tuple)}
