"""What partners' columns are worth: how much better rows held out are predicted with them than by the label owner
alone, with an interval, and each partner's share of it.

It needs no more than the scores that each coalition's model gives to the same rows, so it serves every method.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.evaluation.metrics import METRICS, ScoreMetric, ScoreMetricName, Weighted
from coterie.aggregation.evaluation.rows import class_labels, numbers_of
from coterie.errors import ArgumentValueError, DataError, nearest
from coterie.protocol.arrays import Matrix, Vector
from coterie.protocol.conversion import to_json

MOST_PARTNERS: Final = 8
Coalition: TypeAlias = frozenset[str]
"""The partners who join the label owner; empty where it is alone."""
ScoresOf: TypeAlias = Callable[[Coalition], NDArray[Any]]
"""The scores ``[rows]`` that the model of a coalition gives to rows that no coalition's model was trained on."""


@dataclass(frozen=True)
class Estimate:
    """A figure and the interval of its resamples. None where a resample does not define it."""

    value: float
    low: float | None
    high: float | None

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class PartnerValue:
    """What all partners together, and each of them, add to what the label owner has alone.

    metric: the figure. rows: how many it is measured on. resamples, level: of the intervals.
    alone, joint: the figure of the label owner alone, and with all partners.
    gain: joint less alone; of a figure of which less is better, alone less joint. Above 0 the partners help.
    shares: each partner's Shapley value: what it adds to a coalition, on average over all orders in which partners may
        join. They add up to the gain; of one partner it is the gain.
    """

    metric: ScoreMetricName
    rows: int
    resamples: int
    level: float
    alone: float
    joint: float
    gain: Estimate
    shares: Mapping[str, Estimate]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return to_json(self)

    def text(self) -> str:
        """A line for the gain, and one for each share where there are several."""
        shares = self.shares.items() if len(self.shares) > 1 else ()
        return "\n".join(
            [
                f"{self.metric} on {self.rows} rows: {self.alone:.4f} alone, {self.joint:.4f} with "
                f"{', '.join(self.shares)}",
                f"gain {self._told(self.gain)}",
                *(f"  of it {name}: {self._told(share)}" for name, share in shares),
            ]
        )

    def _told(self, found: Estimate) -> str:
        if found.low is None or found.high is None:
            return f"{found.value:+.4f}, without an interval: a resample does not define {self.metric}"
        between = f"{found.low:+.4f} to {found.high:+.4f} ({self.level:.0%})"
        return f"{found.value:+.4f}, {between}{'' if found.is_clear else ': not clear of 0'}"


def partner_value(
    scores: ScoresOf,
    partners: Sequence[str],
    labels: NDArray[Any],
    *,
    metric: ScoreMetricName = "auc",
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> PartnerValue:
    """What partners add to what the label owner has alone, on rows that nothing was trained on.

    Resamples draw rows with replacement (of labels 0 and 1 as many of each label as there are), the same rows for
    every coalition, and intervals are the quantiles of the gains that they give (percentile bootstrap). They say how
    far other rows held out would have given another gain; not how far other rows to train on would have.

    scores: called once for each coalition: twice for one partner, 2**n times for n.
    partners: at most 8.
    labels: of the same rows, ``[rows]``.
    metric: one of `coterie.aggregation.evaluation.metrics.METRICS`.
    Raises ArgumentValueError; DataError for scores and labels that cannot be, or that do not define the metric
    (``metric_undefined``).
    """
    measured = _metric(metric)
    _check(partners, resamples, level)
    truth = class_labels(labels) if measured.labels == "classes" else numbers_of(labels, "labels")
    coalitions = [*_coalitions(partners)]
    figures: list[Weighted] = []
    for coalition in coalitions:
        told = "scores of " + (", ".join(sorted(coalition)) if coalition else "the label owner alone")
        figures.append(measured.prepare(numbers_of(scores(coalition), told, len(truth)), truth))
    values = np.array([[_number(figure(None)) for figure in figures]])
    if np.isnan(values).any():
        at = coalitions[int(np.argmax(np.isnan(values[0])))]
        raise DataError(
            f"{metric} is not defined for the scores of {', '.join(sorted(at)) or 'the label owner alone'}.",
            hint="It may need both labels among the rows, or scores that are chances of label 1.",
            code="metric_undefined",
        )
    groups = np.unique(truth) if measured.labels == "classes" else (None,)
    strata = [np.flatnonzero(truth == group) if group is not None else np.arange(len(truth)) for group in groups]
    drawn = _resampled(figures, strata, resamples, seed)
    # A row for the rows as they are, then one for each resample.
    table = measured.sign * np.concatenate([values, drawn])
    by_coalition = dict(zip(coalitions, table.T, strict=True))
    alone, joint = by_coalition[frozenset()], by_coalition[frozenset(partners)]
    return PartnerValue(
        metric=metric,
        rows=len(truth),
        resamples=resamples,
        level=level,
        alone=float(values[0, 0]),
        joint=float(values[0, -1]),
        gain=_estimate(joint - alone, level),
        shares={partner: _estimate(_shapley(by_coalition, partners, partner), level) for partner in partners},
    )


def _coalitions(partners: Sequence[str]) -> Iterator[Coalition]:
    """The empty one first, and that of all last."""
    for size in range(len(partners) + 1):
        yield from map(frozenset, combinations(partners, size))


def _resampled(figures: Sequence[Weighted], strata: Sequence[NDArray[np.int64]], resamples: int, seed: int) -> Matrix:
    """Each figure in each resample, ``[resamples, figures]``; NaN where it is not defined."""
    generator = np.random.Generator(np.random.PCG64(seed))
    weights = np.zeros(sum(map(len, strata)))
    found = np.empty((resamples, len(figures)))
    for number in range(resamples):
        for rows in strata:
            weights[rows] = np.bincount(generator.integers(0, len(rows), len(rows)), minlength=len(rows))
        found[number] = [_number(figure(weights)) for figure in figures]
    return found


def _shapley(values: Mapping[Coalition, Vector], partners: Sequence[str], partner: str) -> Vector:
    """The mean of what a partner adds, over all orders of partners, in each resample."""
    total = np.zeros_like(next(iter(values.values())))
    for others in _coalitions([other for other in partners if other != partner]):
        orders = len(partners) * comb(len(partners) - 1, len(others))
        total += (values[others | {partner}] - values[others]) / orders
    return total


def _estimate(values: Vector, level: float) -> Estimate:
    """values: of the rows as they are, then of the resamples."""
    if np.isnan(values).any():
        return Estimate(float(values[0]), None, None)
    low, high = np.quantile(values[1:], ((1 - level) / 2, (1 + level) / 2))
    return Estimate(float(values[0]), float(low), float(high))


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def _metric(name: str) -> ScoreMetric:
    for known, metric in METRICS.items():
        if known == name:
            return metric
    near = nearest(name, METRICS)
    raise ArgumentValueError(
        f"There is no metric {name[:64]!r} of scores.",
        hint=f"Did you mean {near}?" if near else f"There are {', '.join(METRICS)}.",
    )


def _check(partners: Sequence[str], resamples: int, level: float) -> None:
    rules = [
        (1 <= len(partners) <= MOST_PARTNERS, f"partners are 1 to {MOST_PARTNERS}: each more doubles the trainings"),
        (len({*partners}) == len(partners), "partners must differ"),
        (resamples >= 1, "resamples must be at least 1"),
        (0 < level < 1, "level must be between 0 and 1"),
    ]
    for good, why in rules:
        if not good:
            raise ArgumentValueError(f"In what a partner's value is measured by: {why}.")
