"""How often the values of a column fall into each of some bins. Exact counts, as `edges` counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.aggregation.analytics.checks import span, whole
from coterie.aggregation.analytics.edges import EDGES, below, counts, even, size
from coterie.aggregation.analytics.query import Query
from coterie.aggregation.analytics.rule import Rule, Told
from coterie.aggregation.reducers import Vector

MOST_BINS = 1 << 14


@dataclass(frozen=True, eq=False)
class Histogram:
    """edges: ``[bins + 1]``, rising; counts: ``[bins]``, of values v with edge j ≤ v < edge j + 1, the last bin with
    its upper end. below, above: values outside all bins.
    """

    edges: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int64]
    below: int
    above: int


def histogram_rule(low: float, high: float, bins: float) -> Rule:
    """The rule of `histogram`. Raises errors.ExperimentError (``query_invalid``)."""
    bounds, number = span("histogram", low, high), whole("histogram", "bins", bins, least=1, most=MOST_BINS)
    edges = even(*bounds, number)[np.newaxis]
    return Rule(
        name="histogram",
        parameters={"low": bounds[0], "high": bounds[1], "bins": float(number)},
        size=size(edges),
        contribute=below,
        told={EDGES: edges},
    )


def histogram(column: str, *, low: float, high: float, bins: int = 32) -> Query[Histogram]:
    """Counts in bins of equal width over [low, high], in the column's raw units.

    Raises errors.ExperimentError (``query_invalid``).
    """
    return Query(column, histogram_rule(low, high, bins), _read)


def _read(total: Vector, told: Told) -> Histogram:
    edges = told[EDGES]
    values, under, inside = counts(total, edges)
    above = values - under[0] - inside.sum()
    return Histogram(edges[0], inside[0].astype(np.int64), int(under[0]), int(above))
