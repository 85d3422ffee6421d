"""Quantiles by narrowing: each round cuts the interval that holds a quantile into bins and keeps one of them.

Let n be the number of values. The q-quantile is the ⌈qn⌉-th smallest (the least for q = 0), one of the values
themselves. A round counts, for every bin edge, the values below it, so it knows the bin that holds that value exactly.
Therefore, if the same rows answer every round:

    value error    the quantile lies in [lower, upper); upper − lower ≤ (high − low) / bins**rounds, and a float32
                   spacing at the larger end of the range for each round and one more, since edges are float32
                   numbers; the value given is the middle, so it is wrong by at most half of that
    rank error     none: the counts are exact

Under differential privacy a round tells between which edges the quantile lies but for a small chance (see `bracket`),
and the next round cuts these into bins. So with probability 1 − `bracket.WRONG`, all quantiles of an answer lie in
their intervals, and the rank of every value of an interval is off by at most `rank_error` of all values. An interval
narrows until the counts between its ends are no more than noise; few bins and more rounds narrow it further, since what
lies below an edge has the noise of all counts. Where noise leaves open whether a quantile lies in the range, its bound
there is infinite.

If each round asks another sample of m rows, a rank is wrong by at most n · √(ln(2/δ) / 2m) with probability 1 − δ
(Dvoretzky, Kiefer and Wolfowitz, with Massart's constant, 1990), and so is the choice of the bin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from coterie import errors
from coterie.aggregation.analytics.bound import QueryNoise, Shortened
from coterie.aggregation.analytics.bracket import bracket, sureness
from coterie.aggregation.analytics.checks import number, span, whole
from coterie.aggregation.analytics.edges import (
    EDGES,
    Edges,
    below,
    counts,
    cut,
    even,
    part_weights,
    parted,
    parts,
    size,
)
from coterie.aggregation.analytics.query import Query
from coterie.aggregation.analytics.rule import QueryRule
from coterie.aggregation.reducers import Vector
from coterie.protocol.arrays import FloatArrays

MOST_LEVELS, MOST_BINS, MOST_ROUNDS = 8, 1 << 12, 32
SIDE, SURE, RANK = "side", "sure", "rank"
"""``[levels]``: −1 where the quantile lies below the range that was asked about, 1 where it lies above, else 0. Of
noised ones also, for the lower and the upper end of each interval, ``[levels, 2]``: one where the quantile lies on this
side of it for certain; and how far the end's rank may be from the quantile's.
"""


@dataclass(frozen=True)
class Quantile:
    """One quantile.

    level: q.
    value: the middle of [lower, upper), which holds the quantile; ±inf outside the range that was asked about, with
        that end of the range as the other bound. Where a later round asked other rows, whose quantile lies outside what
        an earlier one left, the value is the near end of that, and the error infinite. Where noise leaves open whether
        it lies in the range, the bound there is infinite.
    rank_error: see the module's docstring.
    """

    level: float
    value: float
    lower: float
    upper: float
    rank_error: float = 0.0

    @property
    def error(self) -> float:
        """How far the value can be from the quantile."""
        return (self.upper - self.lower) / 2


@dataclass(frozen=True)
class Quantiles:
    """The quantiles that were asked for.

    values: how many there are; whole without noise.
    quantiles: in the order that was asked for.
    values_error: the standard error of their number.
    shortened: the clients of whose rows not all count in full; None without noise.
    """

    values: float
    quantiles: tuple[Quantile, ...]
    values_error: float = 0.0
    shortened: Shortened | None = None


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
    clip: float = 0,
    noise: float = 0,
    elements: float = 1,
) -> QueryRule:
    """The rule of `quantiles`, whose levels are q0, q1, ….

    clip, noise, elements: see `QueryNoise`.

    Raises errors.ExperimentError (``query_invalid``).
    """
    bounds, cuts = span("quantiles", low, high), whole("quantiles", "bins", bins, least=2, most=MOST_BINS)
    turns = whole("quantiles", "rounds", rounds, least=1, most=MOST_ROUNDS)
    levels = [level for level in (q0, q1, q2, q3, q4, q5, q6, q7) if level is not None]
    asked = [number("quantiles", "a level", level, least=0, most=1) for level in levels]
    terms = QueryNoise.read("quantiles", clip, noise, elements)
    edges = np.repeat(even(*bounds, cuts)[np.newaxis], len(asked), axis=0)
    largest = max(map(abs, bounds))
    weights = part_weights(edges, terms.elements)
    bound = terms.bound(weights)
    of_counts = 0.0 if bound is None else float(bound.deviations()[1])
    sure = sureness(len(asked) * turns, cuts)

    def advance(total: Vector, settings: FloatArrays, round: int) -> FloatArrays:
        values, under, inside = counts(total, settings[EDGES])
        after, side = settings[EDGES].copy(), settings[SIDE].copy()
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
                row = settings[EDGES][index]
                after[index] = cut(row[chosen], row[chosen + 1], cuts, largest)
        return {EDGES: after, SIDE: side}

    def advance_noised(total: Vector, settings: FloatArrays, round: int) -> FloatArrays:
        after = {name: value.copy() for name, value in settings.items()}
        for index, (level, counted) in enumerate(zip(asked, parts(total, settings[EDGES]), strict=True)):
            found, row, ends = bracket(counted, level, of_counts, sure), settings[EDGES][index], settings[SURE][index]
            lower, upper = found.lower, found.upper
            if settings[SIDE][index] or (lower is not None and upper is not None and lower >= upper):
                continue  # noise that contradicts itself says nothing
            if (upper == 0 and ends[0]) or (lower == cuts and ends[1]):
                continue  # nor does noise that contradicts what an earlier round is sure of
            after[SURE][index] = np.maximum(ends, [lower is not None, upper is not None])
            after[RANK][index] = np.minimum(settings[RANK][index], [found.under, found.over])
            if upper == 0 or lower == cuts:
                after[SIDE][index] = -1 if upper == 0 else 1
                continue
            first, last = lower or 0, cuts if upper is None else upper
            after[EDGES][index] = cut(row[first], row[last], cuts, largest)
        return after

    first_told = {EDGES: edges, SIDE: np.zeros(len(asked), np.float32)}
    unsure = np.array([[level, 1 - level] for level in asked], np.float32)
    first_noised = {SURE: np.zeros_like(unsure), RANK: unsure}
    return QueryRule(
        name="quantiles",
        parameters={
            "low": bounds[0],
            "high": bounds[1],
            "bins": float(cuts),
            "rounds": float(turns),
            **{f"q{index}": level for index, level in enumerate(asked)},
            **terms.parameters,
        },
        size=size(edges) if bound is None else weights.size,
        contribute=below if bound is None else parted,
        settings=first_told if bound is None else {**first_told, **first_noised, **terms.settings},
        advance=advance if bound is None else advance_noised,
        rounds=turns,
        bound=bound,
    )


def quantiles(
    column: str, levels: Sequence[float], *, low: float, high: float, bins: int = 64, rounds: int = 3
) -> Query[Quantiles]:
    """Quantiles of a column's values, each level in [0, 1]; the module's docstring states the error.

    low, high: where the quantiles are looked for; one outside is reported as such.
    Raises errors.ExperimentError (``query_invalid``).
    """
    if not isinstance(cast(object, levels), Sequence | np.ndarray) or isinstance(levels, str | bytes):
        raise errors.ExperimentError(
            f"quantiles: levels must be numbers in a tuple, got {levels!r}.",
            hint="Write (0.25, 0.5, 0.75), or (0.5,) for the median alone.",
            code="query_invalid",
        )
    if not 1 <= len(levels) <= MOST_LEVELS:
        raise errors.ExperimentError(
            f"quantiles: one to {MOST_LEVELS} levels can be asked for at once, got {len(levels)}.", code="query_invalid"
        )
    # The rule takes a level that is None for one that is not asked for.
    levels = tuple(number("quantiles", "a level", level, least=0, most=1) for level in levels)

    def noised(terms: QueryNoise) -> QueryRule:
        return quantiles_rule(low, high, bins, rounds, *levels, **terms.parameters)

    def read(rule: QueryRule, total: Vector, settings: FloatArrays) -> Quantiles:
        found = tuple(
            _quantile(level, row, side, low, high)
            for level, row, side in zip(levels, settings[EDGES], settings[SIDE].tolist(), strict=True)
        )
        if rule.bound is None:
            return Quantiles(int(total[0]), found)
        counted = parts(total, settings[EDGES])
        # Every level counted all values for itself.
        error = float(rule.bound.deviations()[1]) * math.sqrt(counted.shape[1] / counted.shape[0])
        unsure = tuple(
            _without_open_bounds(quantile, ends, float(ranks.max()))
            for quantile, ends, ranks in zip(found, settings[SURE], settings[RANK], strict=True)
        )
        return Quantiles(float(counted.sum()) / len(counted), unsure, error, rule.bound.shortened(total))

    return Query(column, quantiles_rule(low, high, bins, rounds, *levels), noised, read)


def _without_open_bounds(quantile: Quantile, ends: Edges, rank: float) -> Quantile:
    """The quantile, without the bounds that noise leaves open."""
    lower, upper = quantile.lower if ends[0] else -math.inf, quantile.upper if ends[1] else math.inf
    return replace(quantile, lower=lower, upper=upper, rank_error=rank)


def _quantile(level: float, row: Edges, side: float, low: float, high: float) -> Quantile:
    lower, upper = float(row[0]), float(row[-1])
    if side < 0:
        return Quantile(float(level), lower if lower > np.float32(low) else -math.inf, -math.inf, lower)
    if side > 0:
        # The last edge of the whole range lies just above high.
        return Quantile(float(level), upper if upper <= high else math.inf, upper, math.inf)
    return Quantile(float(level), (lower + upper) / 2, lower, upper)
