"""Quantiles by narrowing: each round cuts the interval that holds a quantile into bins and keeps one of them.

Let n be the number of values. The q-quantile is the ⌈qn⌉-th smallest (the least for q = 0), one of the values
themselves. A round counts, for every bin edge, the values below it, so it knows the bin that holds that value exactly.
Therefore, if the same rows answer every round:

    value error    the quantile lies in [lower, upper); upper − lower ≤ (high − low) / bins**rounds, and a float32
                   spacing at the larger end of the range for each round and one more, since edges are float32
                   numbers; the value given is the middle, so it is wrong by at most half of that
    rank error     none: the counts are exact

If each round asks another sample of m rows, a rank is wrong by at most n · √(ln(2/δ) / 2m) with probability 1 − δ
(Dvoretzky, Kiefer and Wolfowitz, with Massart's constant, 1990), and so is the choice of the bin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie import errors
from coterie.aggregation.analytics.checks import number, span, whole
from coterie.aggregation.analytics.edges import EDGES, Edges, below, counts, cut, even, size
from coterie.aggregation.analytics.query import Query
from coterie.aggregation.analytics.rule import Rule, Told
from coterie.aggregation.reducers import Vector

MOST_LEVELS, MOST_BINS, MOST_ROUNDS = 8, 1 << 12, 32
SIDE = "side"
"""``[levels]``: −1 where the quantile lies below the range that was asked about, 1 where it lies above, else 0."""


@dataclass(frozen=True)
class Quantile:
    """level: q. value: the middle of [lower, upper), which holds the quantile; ±inf outside the range that was asked
    about, with that end of the range as the other bound. Where a later round asked other rows, whose quantile lies
    outside what an earlier one left, the value is the near end of that, and the error infinite.
    """

    level: float
    value: float
    lower: float
    upper: float

    @property
    def error(self) -> float:
        """How far the value can be from the quantile."""
        return (self.upper - self.lower) / 2


@dataclass(frozen=True)
class Quantiles:
    """values: how many there are; quantiles: in the order that was asked for."""

    values: int
    quantiles: tuple[Quantile, ...]


def quantiles_rule(
    low: float,
    high: float,
    bins: float,
    rounds: float,
    q0: float,
    q1: float | None = None,
    q2: float | None = None,
    q3: float | None = None,
    q4: float | None = None,
    q5: float | None = None,
    q6: float | None = None,
    q7: float | None = None,
) -> Rule:
    """The rule of `quantiles`, whose levels are q0, q1, …. Raises errors.ExperimentError (``query_invalid``)."""
    bounds, cuts = span("quantiles", low, high), whole("quantiles", "bins", bins, least=2, most=MOST_BINS)
    turns = whole("quantiles", "rounds", rounds, least=1, most=MOST_ROUNDS)
    levels = [level for level in (q0, q1, q2, q3, q4, q5, q6, q7) if level is not None]
    asked = [number("quantiles", "a level", level, least=0, most=1) for level in levels]
    edges = np.repeat(even(*bounds, cuts)[np.newaxis], len(asked), axis=0)

    def advance(total: Vector, told: Told, round: int) -> Told:
        values, under, inside = counts(total, told[EDGES])
        after, side = told[EDGES].copy(), told[SIDE].copy()
        for index, level in enumerate(asked):
            # A level such as 0.07 is not what it says in binary: 0.07 · 100 must be the seventh value, not the eighth.
            rank = max(1, math.ceil(level * values * (1 - 1e-12)))
            reached = under[index] + np.cumsum(inside[index])
            if values == 0 or side[index]:
                continue
            if rank <= under[index]:
                side[index] = -1
            elif rank > reached[-1]:
                side[index] = 1
            else:
                chosen = int(np.searchsorted(reached, rank))
                row = told[EDGES][index]
                after[index] = cut(row[chosen], row[chosen + 1], cuts, max(map(abs, bounds)))
        return {EDGES: after, SIDE: side}

    return Rule(
        name="quantiles",
        parameters={
            "low": bounds[0],
            "high": bounds[1],
            "bins": float(cuts),
            "rounds": float(turns),
            **{f"q{index}": level for index, level in enumerate(asked)},
        },
        size=size(edges),
        contribute=below,
        told={EDGES: edges, SIDE: np.zeros(len(asked), np.float32)},
        advance=advance,
        rounds=turns,
    )


def quantiles(
    column: str, levels: Sequence[float], *, low: float, high: float, bins: int = 64, rounds: int = 3
) -> Query[Quantiles]:
    """Quantiles of a column's values, each level in [0, 1]; the module's docstring states the error.

    low, high: where the quantiles are looked for; one outside is reported as such. Raises errors.ExperimentError
    (``query_invalid``).
    """
    if not 1 <= len(levels) <= MOST_LEVELS:
        raise errors.ExperimentError(
            f"quantiles: one to {MOST_LEVELS} levels can be asked for at once, got {len(levels)}.", code="query_invalid"
        )
    rule = quantiles_rule(low, high, bins, rounds, *levels)

    def read(total: Vector, told: Told) -> Quantiles:
        found = tuple(
            _quantile(level, row, side, low, high)
            for level, row, side in zip(levels, told[EDGES], told[SIDE].tolist(), strict=True)
        )
        return Quantiles(int(total[0]), found)

    return Query(column, rule, read)


def _quantile(level: float, row: Edges, side: float, low: float, high: float) -> Quantile:
    lower, upper = float(row[0]), float(row[-1])
    if side < 0:
        return Quantile(float(level), lower if lower > np.float32(low) else -math.inf, -math.inf, lower)
    if side > 0:
        # The last edge of the whole range lies just above high.
        return Quantile(float(level), upper if upper <= high else math.inf, upper, math.inf)
    return Quantile(float(level), (lower + upper) / 2, lower, upper)
