"""Mean and variance of a column, per element.

Values are cut to [low, high] first, so that no row can add more than one unit: whoever asks says the range, and what
lies outside counts as its end. Devices add u = (x − low) / (high − low) and u² in float32: after n rows their sums are
right to a relative n · 2**-24 at worst and √n · 2**-24 as a rule. The server adds in float64. The variance is the mean
of u² less the square of that of u, so it is wrong by up to three times as much of (high − low)²: ask with a range that
is not much wider than the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coterie.aggregation.analytics.checks import span, whole
from coterie.aggregation.analytics.query import Query
from coterie.aggregation.analytics.rule import Rule, Told
from coterie.aggregation.reducers import Vector

if TYPE_CHECKING:
    from coterie.aggregation.horizontal.algorithm import Arrays
    from coterie.compute.array import Array

MOST_ELEMENTS = 1 << 20


@dataclass(frozen=True, eq=False)
class Mean:
    """rows: how many there are. mean, variance: ``[elements]``, in the column's units; the variance divides by rows."""

    rows: int
    mean: npt.NDArray[np.float64]
    variance: npt.NDArray[np.float64]


def mean_rule(low: float, high: float, elements: float = 1) -> Rule:
    """The rule of `mean`. Raises errors.ExperimentError (``query_invalid``)."""
    bounds = span("mean", low, high)
    width = whole("mean", "elements", elements, least=1, most=MOST_ELEMENTS)

    def contribute(values: Array, told: Arrays) -> Array:
        from coterie.compute import numpy as xp

        unit = xp.minimum(xp.maximum((values - bounds[0]) / (bounds[1] - bounds[0]), 0.0), 1.0)
        return xp.concat([xp.ones((values.shape[0], 1)), unit, unit * unit], axis=1)

    return Rule(
        name="mean",
        parameters={"low": bounds[0], "high": bounds[1], "elements": float(width)},
        size=1 + 2 * width,
        contribute=contribute,
        told={},
        whole=False,
        elements=width,
    )


def mean(column: str, *, low: float, high: float, elements: int = 1) -> Query[Mean]:
    """Mean and variance of each element of a column. low, high: the range that values are cut to. elements: how many
    numbers a row of the column has.

    Raises errors.ExperimentError (``query_invalid``).
    """
    rule = mean_rule(low, high, elements)

    def read(total: Vector, told: Told) -> Mean:
        rows = round(total[0])
        first, second = total[1 : 1 + elements] / max(rows, 1), total[1 + elements :] / max(rows, 1)
        width = rule.parameters["high"] - rule.parameters["low"]
        spread = np.maximum(second - first**2, 0.0)  # rounding may leave a little less than nothing
        return Mean(rows, rule.parameters["low"] + width * first, width**2 * spread)

    return Query(column, rule, read)
