"""Figures of the order in which a model puts rows of two classes.

Equal scores share a place, so that no figure depends on the order of rows; a weight counts a row as often as it says.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.arrays import Matrix, Vector


@dataclass(frozen=True, eq=False)
class Ranking:
    """Rows by the places of their scores. Make one with `rank`.

    scores: the distinct ones, rising, ``[places]``.
    cells: of each row, twice its place, and one more if it is of class 1, ``[rows]``.
    """

    scores: Vector
    cells: NDArray[np.int64]

    def counts(self, weights: Vector | None = None) -> Matrix:
        """How many rows there are at each place, ``[2, places]``: of the others, then of class 1."""
        found = np.bincount(self.cells, weights, 2 * len(self.scores))
        return found.reshape(-1, 2).T.astype(np.float64)


RankFigure = Callable[[Matrix], float | None]
"""The counts of a ranking to a figure; None where it is not defined."""


def rank(scores: NDArray[Any], positive: NDArray[np.bool_]) -> Ranking:
    """scores, positive: ``[rows]``, whether each is of class 1."""
    distinct, place = np.unique(scores, return_inverse=True)
    return Ranking(distinct, 2 * place + positive)


def area(counts: Matrix) -> float | None:
    """The area under the ROC curve: how often a row of class 1 is above one of the others (Mann and Whitney), ties
    counting half. None where there are none of either.
    """
    others, ones = counts
    pairs = others.sum() * ones.sum()
    below = np.cumsum(others) - others / 2
    # A product of so long vectors by BLAS starts threads, which cost more than they bring.
    return float((ones * below).sum() / pairs) if pairs else None


def separation(counts: Matrix) -> float | None:
    """Kolmogorov and Smirnov's distance of the two classes' scores. None where there are none of either."""
    apart = _apart(counts)
    return None if apart is None else float(apart.max())


def best_cut(counts: Matrix) -> int | None:
    """The place from which on rows are most apart from those below, the lowest of several; None without any."""
    apart = _apart(counts)
    return None if apart is None or not apart.max() else int(np.argmax(apart)) + 1


def average_precision(counts: Matrix) -> float | None:
    """The area under the curve of precision and recall, as a sum of steps. None where no row is of class 1."""
    _, ones = counts
    if not ones.sum():
        return None
    from_top = counts[:, ::-1].cumsum(axis=1)
    said = from_top.sum(axis=0)
    precision = np.divide(from_top[1], said, out=np.zeros_like(said), where=said > 0)
    return float((precision * ones[::-1]).sum() / ones.sum())


def bands_of(counts: Vector, bands: int) -> NDArray[np.int64]:
    """The band of each place, of bands of about as many rows each: that in which the middle one of its rows lies.

    A place is never split, so a band may hold more rows or none.
    counts: rows at each place, ``[places]``.
    """
    upto = np.cumsum(counts)
    return np.minimum(bands * (upto - counts / 2) // upto[-1], bands - 1).astype(np.int64)


def _apart(counts: Matrix) -> Vector | None:
    """How far the shares of both classes up to each place but the last are apart; none at all is 0 apart."""
    whole = counts.sum(axis=1, keepdims=True)
    if not whole.all():
        return None
    shares = counts[:, :-1].cumsum(axis=1) / whole
    return np.abs(shares[0] - shares[1]) if shares.size else np.zeros(1)
