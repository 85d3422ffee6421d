"""Between which edges a quantile lies, where counts have noise.

The counts x₀ … x₋₁ of what lies below all edges, in each bin and above all edges have independent Gaussian noise of one
deviation s. At edge j, with m counts and j + 1 of them below it,

    D = (1 − q) Σ_{i ≤ j} xᵢ − q Σ_{i > j} xᵢ

is by how much the rows below the edge exceed q of all rows, with noise of variance s² ((1 − q)² (j + 1) + q² (m − j −
1)). Where D is below 0 by more than z deviations, the quantile lies at the edge or above; where it is above 0 by more
than that, below the edge. All edges of all levels and rounds, and their numbers of values, are together wrong with a
chance of at most `WRONG`, by the union over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from coterie.aggregation.reducers import Vector

WRONG = 0.05
"""The chance that any interval of an answer does not hold its quantile."""


@dataclass(frozen=True)
class Bracket:
    """Where a quantile certainly lies, found from noised counts.

    lower, upper: the edges nearest to the quantile of which it is certain that it lies above the one and below the
        other; None where it is of none.
    under, over: how far their ranks may be from the quantile's, as shares of all values; of what is not certain, as far
        as a rank can be.
    """

    lower: int | None
    upper: int | None
    under: float
    over: float


def sureness(rows: int, bins: int) -> float:
    """How many deviations the edges of so many rows of bins may be off without any being wrong, but for `WRONG`."""
    return -NormalDist().inv_cdf(WRONG / (2 * rows * (bins + 2)))


def bracket(parts: Vector, level: float, deviation: float, sure: float) -> Bracket:
    """The bounds of a quantile that noised counts leave.

    parts: the noised counts, ``[bins + 2]``.
    deviation: s.
    sure: z.
    """
    below = np.arange(1, parts.size)
    whole = float(parts.sum())
    excess = np.cumsum(parts)[:-1] - level * whole
    room = sure * deviation * np.sqrt((1 - level) ** 2 * below + level**2 * (parts.size - below))
    under, over = np.flatnonzero(excess + room < 0), np.flatnonzero(excess - room >= 0)
    lower = int(under[-1]) if under.size else None
    upper = int(over[0]) if over.size else None
    fewest = max(whole - sure * deviation * parts.size**0.5, 1.0)
    return Bracket(
        lower,
        upper,
        level if lower is None else min(level, float(room[lower] - excess[lower]) / fewest),
        1 - level if upper is None else min(1 - level, float(room[upper] + excess[upper]) / fewest),
    )
