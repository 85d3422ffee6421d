"""The values that occur most: whole numbers found digit by digit.

Values are whole numbers in [0, 2**bits): ids, categories, or hashes of text that devices make. Each round lengthens the
prefixes that occur in at least the fraction ``fraction`` of all n values by ``step`` bits. A value occurs at most as
often as its prefix, and at most 1/fraction prefixes occur that often; therefore, if the same rows answer every round:

    found          every value that occurs at least fraction · n times, and no other
    counts         exact

If each round asks another sample of m rows, a value of frequency p ≥ fraction is missed in one round with probability
at most exp(−2m (p − fraction)²) (Hoeffding), and a value of frequency p < fraction is reported with at most
exp(−2m (fraction − p)²). Growing prefixes by rounds follows Zhu, Kairouz, McMahan, Sun and Li: "Federated Heavy Hitters
Discovery with Differential Privacy" (2020), whose votes of single clients are here sums over rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.aggregation.analytics.checks import number, whole
from coterie.aggregation.analytics.edges import EDGES, NOWHERE, Edges, below, counts, size
from coterie.aggregation.analytics.query import Query
from coterie.aggregation.analytics.rule import Rule, Told
from coterie.aggregation.reducers import Vector

MOST_BITS, MOST_STEP = 24, 8
"""float32 holds every whole number up to 2**24, so that is the largest domain."""
LEAST_FRACTION = 1e-4
FOUND, HIGH, LOW = "found", "times/high", "times/low"
NOTHING = np.float32(-1)


@dataclass(frozen=True)
class HeavyHitters:
    """values: how many there are in all. threshold: the count that a value must reach. found: value → count, the most
    frequent first.
    """

    values: int
    threshold: float
    found: dict[int, int]


def heavy_hitters_rule(bits: float, fraction: float, step: float) -> Rule:
    """The rule of `heavy_hitters`. Raises errors.ExperimentError (``query_invalid``)."""
    length = whole("heavy_hitters", "bits", bits, least=1, most=MOST_BITS)
    stride = min(whole("heavy_hitters", "step", step, least=1, most=MOST_STEP), length)
    share = number("heavy_hitters", "fraction", fraction, least=LEAST_FRACTION, most=1)
    slots, rounds = int(1 / share + 1e-9), -(-length // stride)
    edges = np.full((slots, (1 << stride) + 1), NOWHERE, np.float32)
    edges[0] = _cut(0, length, stride)

    def advance(total: Vector, told: Told, round: int) -> Told:
        left = length - round * stride  # bits that are still open after this round
        values, _, inside = counts(total, told[EDGES])
        starts = told[EDGES][:, :-1]
        # A fraction such as 0.07 is not what it says in binary: 7 of 100 must be enough.
        frequent = (inside >= share * values * (1 - 1e-12)) & (inside > 0)
        # The most frequent first, and of equals the smallest.
        order = np.lexsort((starts[frequent], -inside[frequent]))[:slots]
        prefixes, times = starts[frequent][order], inside[frequent][order]
        after = np.full_like(told[EDGES], NOWHERE)
        if left > 0:
            for slot, start in enumerate(prefixes.tolist()):
                after[slot] = _cut(int(start), left, stride)
        return {EDGES: after, **_listed(slots, prefixes if left <= 0 else prefixes[:0], times)}

    return Rule(
        name="heavy_hitters",
        parameters={"bits": float(length), "fraction": share, "step": float(stride)},
        size=size(edges),
        contribute=below,
        told={EDGES: edges, **_listed(slots, np.zeros(0, np.float32), np.zeros(0))},
        advance=advance,
        rounds=rounds,
    )


def heavy_hitters(column: str, *, bits: int, fraction: float, step: int = 4) -> Query[HeavyHitters]:
    """The values of a column of whole numbers that make up at least ``fraction`` of all; the module's docstring states
    what is certain. bits: values lie in [0, 2**bits), others only count into the total. step: bits per round.

    Raises errors.ExperimentError (``query_invalid``).
    """
    rule = heavy_hitters_rule(bits, fraction, step)

    def read(total: Vector, told: Told) -> HeavyHitters:
        times = told[HIGH].astype(np.float64) + told[LOW]
        known = told[FOUND] != NOTHING
        found = dict(zip(told[FOUND][known].astype(int).tolist(), times[known].astype(int).tolist(), strict=True))
        return HeavyHitters(int(total[0]), rule.parameters["fraction"] * float(total[0]), found)

    return Query(column, rule, read)


def _cut(start: int, bits: int, step: int) -> Edges:
    """The edges of [start, start + 2**bits), cut into 2**step bins; fewer are left when the values themselves are
    reached, and then the last edge is repeated.
    """
    width = 1 << max(bits - step, 0)
    edges = start + width * np.arange((1 << step) + 1)
    return np.minimum(edges, start + (1 << bits)).astype(np.float32)


def _listed(slots: int, found: Edges, times: Vector) -> dict[str, Edges]:
    """What was found, in as many places as there may be."""
    values, high, low = (np.full(slots, NOTHING, np.float32), np.zeros(slots, np.float32), np.zeros(slots, np.float32))
    number_found = found.size
    counted = times[:number_found]
    values[:number_found] = found
    high[:number_found] = counted
    low[:number_found] = counted - high[:number_found]
    return {FOUND: values, HIGH: high, LOW: low}
