"""The values that occur most: whole numbers found digit by digit.

Values are whole numbers in [0, 2**bits): ids, categories, or hashes of text that devices make. A device that undoes the
normalisation of a float32 column finds them only nearly, so whatever lies within 1/64 of a whole number counts as it,
which is right up to 2**14; columns of greater numbers are int32. Other values only count into the total. Each round
lengthens the prefixes that occur in at least the fraction ``fraction`` of all n values by ``step`` bits. A value occurs
at most as often as its prefix, and at most 1/fraction prefixes occur that often; therefore, if the same rows answer
every round:

    found          every value that occurs at least fraction · n times, and no other
    counts         exact

If each round asks another sample of m rows, a value of frequency p ≥ fraction is missed in one round with probability
at most exp(−2m (p − fraction)²) (Hoeffding), and a value of frequency p < fraction is reported with at most
exp(−2m (fraction − p)²). Growing prefixes by rounds follows Zhu, Kairouz, McMahan, Sun and Li: "Federated Heavy Hitters
Discovery with Differential Privacy" (2020), whose votes of single clients are here sums over rows.

Under differential privacy a prefix is followed from a threshold on: the fraction of all n values, or where that is
more, what noise alone reaches anywhere in a round with a chance of `noise.FALSE`. That is the more, the more prefixes a
round follows; T is the largest threshold of all rounds. Let s be the deviation of the noise on a count less the
threshold, R the rounds, and Φ the normal distribution. Rounds have noise of their own, so a value that occurs c times

    is missed              with probability at most 1 − Φ((c − T)/s)ᴿ
    is reported            with probability at most Φ((c − T)/s)

At the threshold itself that is 1 − 2⁻ᴿ and ½: ask for a smaller fraction than what must not be missed (`sure_from`).
Where more than 1/fraction prefixes pass, those with the smallest counts are dropped: only noise can make them so many.
Counts of what is reported are those of the last round, which a value near T passes the easier the more noise adds to
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from coterie.aggregation.analytics.bound import QueryNoise, Shortened
from coterie.aggregation.analytics.bracket import WRONG
from coterie.aggregation.analytics.checks import number, whole
from coterie.aggregation.analytics.edges import EDGES, NOWHERE, Edges, below, counts, inside, size
from coterie.aggregation.analytics.noise import above_noise
from coterie.aggregation.analytics.query import Query
from coterie.aggregation.analytics.rule import QueryRule
from coterie.aggregation.reducers import Vector
from coterie.protocol.arrays import FloatArrays

if TYPE_CHECKING:
    from coterie.compute.array import Array

    Contribute: TypeAlias = Callable[[Array, Mapping[str, Array]], Array]

MOST_BITS, MOST_STEP = 24, 8
"""float32 holds every whole number up to 2**24, so that is the largest domain."""
LEAST_FRACTION = 1e-4
FOUND, HIGH, LOW, FLOOR = "found", "times/high", "times/low", "floor"
"""Told of noised ones alone: the floor, which is the most that noise alone was taken to reach in any round so far."""
NOTHING = np.float32(-1)
NEAR = 2.0**-6
ENOUGH = 1 - 1e-12
"""A fraction such as 0.07 is not what it says in binary: 7 of 100 must be enough."""
OF_VALUES = 0.25
"""What the number of values weighs beside the counts: it is needed times the fraction only."""


@dataclass(frozen=True)
class HeavyHitters:
    """The values that occur often, and how often. Numbers are whole without noise.

    values: how many values there are in all.
    threshold: the count that a value must reach in every round.
    counts: value → count, the most frequent first.
    rounds: how many it took.
    values_error, error: the standard errors of the number of values and of every count.
    margin: that of a count less the threshold.
    shortened: the clients of whose rows not all count in full; None without noise.
    """

    values: float
    threshold: float
    counts: dict[int, float]
    rounds: int
    values_error: float = 0.0
    error: float = 0.0
    margin: float = 0.0
    shortened: Shortened | None = None

    def missed(self, times: float) -> float:
        """The probability with which a value that occurs so often is missed: at most this, see the module."""
        return 1 - self._passes(times) ** self.rounds

    def reported(self, times: float) -> float:
        """The probability with which a value that occurs so often is reported: at most this, see the module."""
        return self._passes(times)

    @property
    def sure_from(self) -> float:
        """How often a value must occur to be missed with a probability of at most `WRONG`."""
        return self.threshold + self.margin * NormalDist().inv_cdf((1 - WRONG) ** (1 / self.rounds))

    def _passes(self, times: float) -> float:
        if not self.margin:
            return float(times >= self.threshold * ENOUGH)
        return NormalDist().cdf((times - self.threshold) / self.margin)


def heavy_hitters_rule(
    bits: float, fraction: float, step: float, clip: float = 0, noise: float = 0, elements: float = 1
) -> QueryRule:
    """The rule of `heavy_hitters`.

    clip, noise, elements: see `QueryNoise`.

    Raises errors.ExperimentError (``query_invalid``).
    """
    length = whole("heavy_hitters", "bits", bits, least=1, most=MOST_BITS)
    stride = min(whole("heavy_hitters", "step", step, least=1, most=MOST_STEP), length)
    share = number("heavy_hitters", "fraction", fraction, least=LEAST_FRACTION, most=1)
    terms = QueryNoise.read("heavy_hitters", clip, noise, elements)
    slots, rounds = int(1 / share + 1e-9), -(-length // stride)
    edges = np.full((slots, (1 << stride) + 1), NOWHERE, np.float32)
    edges[0] = _cut(0, length, stride)
    bound = terms.bound(_weights(slots << stride, terms.elements))

    def counted(total: Vector, settings: FloatArrays) -> tuple[Vector, float, float]:
        """The count in each bin ``[slots, bins]``, what it must reach, and what noise alone may."""
        if bound is None:
            values, _, found = counts(total, settings[EDGES])
            return found, share * values * ENOUGH, 0.0
        used = np.diff(settings[EDGES], axis=1) > 0
        alone = above_noise(float(bound.deviations()[1]), int(used.sum()))
        return np.where(used, total[1:-1].reshape(used.shape), 0.0), max(share * float(total[0]), alone), alone

    def advance(total: Vector, settings: FloatArrays, round: int) -> FloatArrays:
        left = length - round * stride  # bits that are still open after this round
        found, least, alone = counted(total, settings)
        starts = settings[EDGES][:, :-1]
        frequent = (found >= least) & (found > 0)
        # The most frequent first, and of equals the smallest.
        order = np.lexsort((starts[frequent], -found[frequent]))[:slots]
        prefixes, times = starts[frequent][order], found[frequent][order]
        after = np.full_like(settings[EDGES], NOWHERE)
        if left > 0:
            for slot, start in enumerate(prefixes.tolist()):
                after[slot] = _cut(int(start), left, stride)
        said = {} if bound is None else {**terms.settings, FLOOR: np.maximum(settings[FLOOR], np.float32(alone))}
        return {EDGES: after, **_padded_to_slots(slots, prefixes if left <= 0 else prefixes[:0], times), **said}

    return QueryRule(
        name="heavy_hitters",
        parameters={"bits": float(length), "fraction": share, "step": float(stride), **terms.parameters},
        size=size(edges) if bound is None else bound.weights.size,
        contribute=_of_whole(below if bound is None else inside),
        settings={
            EDGES: edges,
            **_padded_to_slots(slots, np.zeros(0, np.float32), np.zeros(0)),
            **({} if bound is None else {**terms.settings, FLOOR: np.zeros(1, np.float32)}),
        },
        advance=advance,
        rounds=rounds,
        bound=bound,
    )


def _of_whole(contribute: Contribute) -> Contribute:
    """The same of whole numbers; what is none is nowhere, and only counts into the total."""

    def snapped(values: Array, settings: Mapping[str, Array]) -> Array:
        from coterie.compute import numpy as xp

        nearest = xp.round(values)
        return contribute(xp.where(xp.abs(values - nearest) <= NEAR, nearest, -1.0), settings)

    return snapped


def heavy_hitters(column: str, *, bits: int, fraction: float, step: int = 4) -> Query[HeavyHitters]:
    """The whole numbers of a column that make up at least ``fraction`` of all; the module's docstring states what is
    certain.

    bits: values lie in [0, 2**bits); others, and what is no whole number, only count into the total.
    step: bits per round.

    Raises errors.ExperimentError (``query_invalid``).
    """

    def noised(terms: QueryNoise) -> QueryRule:
        return heavy_hitters_rule(bits, fraction, step, **terms.parameters)

    return Query(column, heavy_hitters_rule(bits, fraction, step), noised, _read)


def _read(rule: QueryRule, total: Vector, settings: FloatArrays) -> HeavyHitters:
    times = settings[HIGH].astype(np.float64) + settings[LOW]
    known = settings[FOUND] != NOTHING
    values, found, share = settings[FOUND][known].astype(int).tolist(), times[known], rule.parameters["fraction"]
    if rule.bound is None:
        counted = dict(zip(values, found.astype(int).tolist(), strict=True))
        return HeavyHitters(int(total[0]), share * float(total[0]), counted, rule.rounds)
    of_values, of_counts = (float(s) for s in rule.bound.deviations()[:2])
    return HeavyHitters(
        values=float(total[0]),
        threshold=max(share * float(total[0]), float(settings[FLOOR][0])),
        counts=dict(zip(values, found.tolist(), strict=True)),
        rounds=rule.rounds,
        values_error=of_values,
        error=of_counts,
        margin=math.hypot(of_counts, share * of_values),
        shortened=rule.bound.shortened(total),
    )


def _weights(bins: int, elements: int) -> Vector:
    """The weights (see `bound`) of the number of values and of all bins, of which one value is in one at most."""
    weights = np.ones(bins + 2)
    weights[0], weights[-1] = OF_VALUES, 0
    return weights / (elements * math.sqrt(1 + OF_VALUES**2))


def _cut(start: int, bits: int, step: int) -> Edges:
    """The edges of [start, start + 2**bits), cut into 2**step bins; fewer are left when the values themselves are
    reached, and then the last edge is repeated.
    """
    width = 1 << max(bits - step, 0)
    edges = start + width * np.arange((1 << step) + 1)
    return np.minimum(edges, start + (1 << bits)).astype(np.float32)


def _padded_to_slots(slots: int, frequent: Edges, times: Vector) -> dict[str, Edges]:
    """What was found, in as many places as there may be."""
    values, high, low = (np.full(slots, NOTHING, np.float32), np.zeros(slots, np.float32), np.zeros(slots, np.float32))
    number_found = frequent.size
    counted = times[:number_found]
    values[:number_found] = frequent
    high[:number_found] = counted
    low[:number_found] = counted - high[:number_found]
    return {FOUND: values, HIGH: high, LOW: low}
