"""The best split of a node, from the sums of its bins: gain and leaf values are those of XGBoost (Chen and Guestrin,
arXiv:1603.02754, equations 5 and 7, without the halves).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.trees.histograms import BinSums
from coterie.aggregation.vertical.trees.terms import TreeTerms

BinLayout: TypeAlias = Sequence[tuple[int, bool]]
"""Of each column: how many bins it has, and whether the last is that of missing values."""
Totals: TypeAlias = tuple[int, int]
"""The gradients and the hessians of a node."""


@dataclass(frozen=True)
class Split:
    """A split of a node.

    column: its number among its party's.
    place: the last bin that goes left.
    """

    gain: float
    column: int
    place: int
    missing_left: bool


def best_split(sums: BinSums, layout: BinLayout, totals: Totals, terms: TreeTerms, bits: int) -> Split | None:
    """The split with the largest gain, the first of equals by column, place, and missing to the right before left; None
    where none gains more than ``terms.min_gain``.

    bits: of the fraction in sums and totals.
    """
    best: Split | None = None
    at = 0
    for column, (count, missing) in enumerate(layout):
        found = _best_of_column(sums[:, at : at + count], missing, totals, terms, bits)
        at += count
        if found is not None and found[0] > (terms.min_gain if best is None else best.gain):
            best = Split(found[0], column, found[1], found[2])
    return best


def leaf_value(totals: Totals, terms: TreeTerms, bits: int) -> float:
    """What a leaf adds to the prediction of its rows; 0 without rows."""
    gradient, hessian = (number / (1 << bits) for number in totals)
    return -terms.learning_rate * gradient / (hessian + terms.l2) if hessian + terms.l2 > 0 else 0.0


def _best_of_column(
    sums: BinSums, missing: bool, totals: Totals, terms: TreeTerms, bits: int
) -> tuple[float, int, bool] | None:
    values = sums.shape[1] - missing
    if values < 2 and not missing:
        return None
    # The last bin as a place too where values are missing: present to the left, missing to the right.
    left = np.cumsum(sums[:, : values if missing else values - 1], axis=1)
    ways = [left] if not missing else [left, left[:, : values - 1] + sums[:, values:]]
    best: tuple[float, int, bool] | None = None
    for way, lefts in enumerate(ways):
        gains = _gains(lefts, totals, terms, bits)
        if gains.size:
            place = int(np.argmax(gains))
            if best is None or (gains[place], -place) > (best[0], -best[1]):
                best = (float(gains[place]), place, bool(way))
    return best


def _gains(lefts: BinSums, totals: Totals, terms: TreeTerms, bits: int) -> NDArray[np.float64]:
    """The gain of each split; -inf where a side is too light."""
    left = np.ldexp(lefts.astype(np.float64), -bits)
    right = np.ldexp((np.array(totals)[:, None] - lefts).astype(np.float64), -bits)
    gradient, hessian = (float(np.ldexp(float(number), -bits)) for number in totals)
    heavy = (left[1] > 0) & (right[1] > 0) & (left[1] >= terms.min_child_weight) & (right[1] >= terms.min_child_weight)
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = left[0] ** 2 / (left[1] + terms.l2) + right[0] ** 2 / (right[1] + terms.l2)
        gains -= gradient**2 / (hessian + terms.l2) if hessian + terms.l2 > 0 else 0.0
    return np.where(heavy, gains, -np.inf)
