"""Figures by name, as functions of row weights: what does not depend on weights is done once, for many resamples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import numpy as np

from coterie.aggregation.evaluation.ranking import RankFigure, area, average_precision, rank, separation
from coterie.protocol.arrays import Vector

LabelKind: TypeAlias = Literal["classes", "numbers"]
ScoreMetricName: TypeAlias = Literal[
    "auc", "ks", "average_precision", "log_loss", "brier", "rmse", "mae", "r2", "poisson_deviance"
]
Weighted: TypeAlias = Callable[[Vector | None], float | None]
"""Row weights, or None where each row counts once, to a figure; None where it is not defined."""


@dataclass(frozen=True)
class ScoreMetric:
    """A figure of scores and labels.

    prepare: scores and labels, ``[rows]`` each, to the figure of row weights.
    labels: which it is of: 0 and 1, or numbers.
    sign: 1 where more is better, -1 where less is.
    """

    prepare: Callable[[Vector, Vector], Weighted]
    labels: LabelKind
    sign: int


def _ranked(figure: RankFigure) -> Callable[[Vector, Vector], Weighted]:
    def prepare(scores: Vector, labels: Vector) -> Weighted:
        ranking = rank(scores, labels == 1)
        return lambda weights: figure(ranking.counts(weights))

    return prepare


def _mean(each: Callable[[Vector, Vector], Vector | None]) -> Callable[[Vector, Vector], Weighted]:
    """each: scores and labels to the number of each row; None where it is not defined for all."""

    def prepare(scores: Vector, labels: Vector) -> Weighted:
        values = each(scores, labels)
        return lambda weights: None if values is None else _mean_of(values, weights)

    return prepare


def _mean_of(values: Vector, weights: Vector | None) -> float:
    return float(values.mean()) if weights is None else float((weights * values).sum() / weights.sum())


def _root_mean_square(scores: Vector, labels: Vector) -> Weighted:
    squares = (scores - labels) ** 2
    return lambda weights: _mean_of(squares, weights) ** 0.5


def _explained(scores: Vector, labels: Vector) -> Weighted:
    squares = (scores - labels) ** 2

    def figure(weights: Vector | None) -> float | None:
        spread = _mean_of((labels - _mean_of(labels, weights)) ** 2, weights)
        return 1 - _mean_of(squares, weights) / spread if spread else None

    return figure


def are_chances(scores: Vector) -> bool:
    """Whether scores may be chances of label 1."""
    return bool(((scores >= 0) & (scores <= 1)).all())


def _log_losses(scores: Vector, labels: Vector) -> Vector | None:
    said = np.where(labels == 1, scores, 1 - scores)
    # A chance of 0 for what has happened costs infinitely much.
    return -np.log(said) if are_chances(scores) and said.all() else None


def _squares_of_chances(scores: Vector, labels: Vector) -> Vector | None:
    return (scores - labels) ** 2 if are_chances(scores) else None


def _poisson_deviances(scores: Vector, labels: Vector) -> Vector | None:
    if (scores <= 0).any() or (labels < 0).any():
        return None
    logs = np.log(np.where(labels > 0, labels, scores) / scores)
    return 2 * (labels * logs - labels + scores)


METRICS: Final[Mapping[ScoreMetricName, ScoreMetric]] = MappingProxyType(
    {
        "auc": ScoreMetric(_ranked(area), "classes", 1),
        "ks": ScoreMetric(_ranked(separation), "classes", 1),
        "average_precision": ScoreMetric(_ranked(average_precision), "classes", 1),
        "log_loss": ScoreMetric(_mean(_log_losses), "classes", -1),
        "brier": ScoreMetric(_mean(_squares_of_chances), "classes", -1),
        "rmse": ScoreMetric(_root_mean_square, "numbers", -1),
        "mae": ScoreMetric(_mean(lambda scores, labels: np.abs(scores - labels)), "numbers", -1),
        "r2": ScoreMetric(_explained, "numbers", 1),
        "poisson_deviance": ScoreMetric(_mean(_poisson_deviances), "numbers", -1),
    }
)
