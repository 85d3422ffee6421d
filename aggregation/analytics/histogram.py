"""How often the values of a column fall into each of some bins. Exact counts, as `edges` counts.

Under differential privacy every count has noise of its own, all of the same standard error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.aggregation.analytics.bound import QueryNoise, Shortened
from coterie.aggregation.analytics.checks import span, whole
from coterie.aggregation.analytics.edges import EDGES, below, counts, even, part_weights, parted, parts, size
from coterie.aggregation.analytics.query import Query
from coterie.aggregation.analytics.rule import QueryRule
from coterie.aggregation.reducers import Vector
from coterie.protocol.arrays import FloatArrays

MOST_BINS = 1 << 14


@dataclass(frozen=True, eq=False)
class Histogram:
    """How many values lie in each bin. All are whole without noise; with it they may be below 0.

    edges: ``[bins + 1]``, rising.
    counts: ``[bins]``, of values v with edge j ≤ v < edge j + 1, the last bin with its upper end.
    below, above: values outside all bins.
    error: the standard error of each.
    shortened: the clients of whose rows not all count; None without noise.
    """

    edges: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int64] | npt.NDArray[np.float64]
    below: float
    above: float
    error: float = 0.0
    shortened: Shortened | None = None


def histogram_rule(
    low: float, high: float, bins: float, clip: float = 0, noise: float = 0, elements: float = 1
) -> QueryRule:
    """The rule of `histogram`.

    clip, noise, elements: see `QueryNoise`.

    Raises errors.ExperimentError (``query_invalid``).
    """
    bounds, number = span("histogram", low, high), whole("histogram", "bins", bins, least=1, most=MOST_BINS)
    terms = QueryNoise.read("histogram", clip, noise, elements)
    edges = even(*bounds, number)[np.newaxis]
    weights = part_weights(edges, terms.elements)
    bound = terms.bound(weights)
    return QueryRule(
        name="histogram",
        parameters={"low": bounds[0], "high": bounds[1], "bins": float(number), **terms.parameters},
        size=size(edges) if bound is None else weights.size,
        contribute=below if bound is None else parted,
        settings={EDGES: edges, **terms.settings},
        bound=bound,
    )


def histogram(column: str, *, low: float, high: float, bins: int = 32) -> Query[Histogram]:
    """Counts in bins of equal width over [low, high], in the column's raw units.

    Raises errors.ExperimentError (``query_invalid``).
    """

    def noised(terms: QueryNoise) -> QueryRule:
        return histogram_rule(low, high, bins, **terms.parameters)

    return Query(column, histogram_rule(low, high, bins), noised, _read)


def _read(rule: QueryRule, total: Vector, settings: FloatArrays) -> Histogram:
    edges = settings[EDGES]
    if rule.bound is not None:
        (found,) = parts(total, edges)
        error = float(rule.bound.deviations()[1])
        ends = float(found[0]), float(found[-1])
        return Histogram(edges[0], found[1:-1], *ends, error, rule.bound.shortened(total))
    values, under, inside = counts(total, edges)
    above = values - under[0] - inside.sum()
    return Histogram(edges[0], inside[0].astype(np.int64), int(under[0]), int(above))
