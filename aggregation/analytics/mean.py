"""Mean and variance of a column, per element.

Values are cut to [low, high] first, so that no row can add more than one unit: whoever asks says the range, and what
lies outside counts as its end. Devices add u = (x − low) / (high − low) and u² in float32: after n rows their sums are
right to a relative n · 2**-24 at worst and √n · 2**-24 as a rule. The server adds in float64. The variance is the mean
of u² less the square of that of u, so it is wrong by up to three times as much of (high − low)²: ask with a range that
is not much wider than the values.

Under differential privacy devices add t = 2u − 1 and t² − ½ instead, which with the 1 of the row itself have a norm of
at most √(1 + 1.25 · elements); of u and u² it would be √(1 + 2 · elements). Let s₀, s₁ and s₂ be the deviations of the
noise on the sums of rows n, of t and of t² − ½, and b and a the means of t and t². Then, by error propagation to the
first order (n is at least `bound.LEAST` times s₀, or nothing is said),

    error of the mean         (high − low)/2 · √(s₁² + b² s₀²) / n
    error of the variance     (high − low)²/4 · √(s₂² + 4b² s₁² + (a − ½ − 2b²)² s₀²) / n
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coterie.aggregation.analytics.bound import QueryNoise, Shortened, answered_total
from coterie.aggregation.analytics.checks import span
from coterie.aggregation.analytics.query import Query
from coterie.aggregation.analytics.rule import QueryRule
from coterie.aggregation.reducers import Vector
from coterie.protocol.arrays import FloatArrays

if TYPE_CHECKING:
    from coterie.aggregation.horizontal.algorithm import Arrays
    from coterie.compute.array import Array


@dataclass(frozen=True, eq=False)
class Mean:
    """The mean and the variance of a column.

    rows: how many there are; whole without noise.
    mean, variance: ``[elements]``, in the column's units; the variance divides by rows.
    rows_error, error, variance_error: their standard errors, of noise, or without any of what sums round (`rounding`).
    shortened: the clients of whose rows not all count in full; None without noise.
    """

    rows: float
    mean: npt.NDArray[np.float64]
    variance: npt.NDArray[np.float64]
    rows_error: float
    error: npt.NDArray[np.float64]
    variance_error: npt.NDArray[np.float64]
    shortened: Shortened | None = None


def rounding(rule: QueryRule, rows: float, clients: int | None) -> tuple[float, float]:
    """What sums on devices, and in the ring of secure aggregation, round of a mean and of its variance, as a rule, in
    the column's units.

    rule: that of the query.
    rows: of all who answered.
    clients: how many they are under secure aggregation, 0 where sums came in the open, None when nobody knows: then as
        many as round the most.
    """
    width, rows = rule.parameters["high"] - rule.parameters["low"], max(rows, 1.0)
    some = [clients] if clients is not None else [1, int(rows)]
    relative = max(math.hypot(math.sqrt(rows / max(each, 1)) * 2.0**-24, _ring(each) / rows) for each in some)
    return relative * width, 3 * relative * width**2


def _ring(clients: int) -> float:
    """The standard deviation of what so many clients' rounding adds to a sum. 2**32 holds all of their sums, each up to
    2**24, or less from 256 clients on; a device rounds a sum up or down by lot.
    """
    return math.sqrt(clients) / 2 * 2.0 ** min(clients.bit_length() - 8, 0)


def mean_rule(low: float, high: float, elements: float = 1, clip: float = 0, noise: float = 0) -> QueryRule:
    """The rule of `mean`.

    clip, noise: see `QueryNoise`.
    Raises errors.ExperimentError (``query_invalid``).
    """
    bounds, terms = span("mean", low, high), QueryNoise.read("mean", clip, noise, elements)
    width = terms.elements
    weights = np.full(2 + 2 * width, 1 / math.sqrt(1 + 1.25 * width))
    weights[-1] = 0
    bound = terms.bound(weights)

    def unit(values: Array) -> Array:
        from coterie.compute import numpy as xp

        return xp.minimum(xp.maximum((values - bounds[0]) / (bounds[1] - bounds[0]), 0.0), 1.0)

    def exact(values: Array, settings: Arrays) -> Array:
        from coterie.compute import numpy as xp

        found = unit(values)
        return xp.concat([xp.ones((values.shape[0], 1)), found, found * found], axis=1)

    def centred(values: Array, settings: Arrays) -> Array:
        from coterie.compute import numpy as xp

        found, rows = 2.0 * unit(values) - 1.0, values.shape[0]
        return xp.concat([xp.ones((rows, 1)), found, found * found - 0.5, xp.zeros((rows, 1))], axis=1)

    return QueryRule(
        name="mean",
        parameters={"low": bounds[0], "high": bounds[1], "elements": float(width), **terms.parameters},
        size=1 + 2 * width if bound is None else 2 + 2 * width,
        contribute=exact if bound is None else centred,
        settings=terms.settings,
        whole=False,
        elements=width,
        bound=bound,
    )


def mean(column: str, *, low: float, high: float, elements: int = 1) -> Query[Mean]:
    """Mean and variance of each element of a column.

    low, high: the range that values are cut to.
    elements: how many numbers a row of the column has.

    Raises errors.ExperimentError (``query_invalid``).
    """

    def noised(terms: QueryNoise) -> QueryRule:
        return mean_rule(low, high, **terms.parameters)

    def rounded(answer: Mean, clients: int | None) -> Mean:
        # Of noised sums the ring's rounding is in the noise's own errors.
        if answer.shortened is not None:
            return answer
        of_mean, of_variance = rounding(mean_rule(low, high, elements), answer.rows, clients)
        return replace(answer, error=answer.error + of_mean, variance_error=answer.variance_error + of_variance)

    return Query(column, mean_rule(low, high, elements), noised, _read, rounded)


def _read(rule: QueryRule, total: Vector, settings: FloatArrays) -> Mean:
    low, elements = rule.parameters["low"], int(rule.parameters["elements"])
    width = rule.parameters["high"] - low
    if rule.bound is None:
        rows = round(total[0])
        first, second = total[1 : 1 + elements] / max(rows, 1), total[1 + elements :] / max(rows, 1)
        spread = np.maximum(second - first**2, 0.0)  # rounding may leave a little less than nothing
        nothing = np.zeros(elements)
        return Mean(rows, low + width * first, width**2 * spread, 0.0, nothing, nothing)
    of_rows, of_first, of_second = (float(s) for s in rule.bound.deviations()[[0, 1, 1 + elements]])
    rows = answered_total("mean", float(total[0]), of_rows)
    first, second = total[1 : 1 + elements] / rows, total[1 + elements : -1] / rows  # of t, and of t² − ½
    return Mean(
        rows=rows,
        mean=low + width * (1 + first) / 2,
        variance=width**2 / 4 * np.maximum(second + 0.5 - first**2, 0.0),
        rows_error=of_rows,
        error=width / 2 * np.hypot(of_first, first * of_rows) / rows,
        variance_error=width**2
        / 4
        * np.sqrt(of_second**2 + (2 * first * of_first) ** 2 + ((second - 2 * first**2) * of_rows) ** 2)
        / rows,
        shortened=rule.bound.shortened(total),
    )
