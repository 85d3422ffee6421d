"""Sums of gradients and hessians by bin, as whole numbers: exact, so the same in every order and under encryption."""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.trees.binning import BinnedColumns

BinSums: TypeAlias = NDArray[np.int64]
"""``[2, bins of all columns]``: gradients, then hessians; the bins of the first column first."""
_HALF: Final = 20


def sum_bins(binned: BinnedColumns, pairs: NDArray[np.int64], rows: NDArray[np.int64]) -> BinSums:
    """The sums of some rows.

    pairs: ``[rows, 2]``, gradient and hessian of each row, each of at most 2**32.
    """
    parts: list[BinSums] = [np.empty((2, 0), np.int64)]
    for column, count in enumerate(binned.counts):
        codes = binned.codes[rows, column]
        parts.append(np.stack([_exact(codes, pairs[rows, which], count) for which in (0, 1)]))
    return np.concatenate(parts, axis=1)


def built_here(sizes: Sequence[int]) -> list[int]:
    """Which nodes of a level have their sums made: of each two siblings the one of fewer rows, the first of equals.

    sizes: rows that count of each node, of siblings one after the other; one for the root. The other's sums are its
        parent's less these.
    """
    if len(sizes) == 1:
        return [0]
    return [first if sizes[first] <= sizes[first + 1] else first + 1 for first in range(0, len(sizes), 2)]


def _exact(codes: NDArray[np.uint16], numbers: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Sums as float64 makes them, of halves that are small enough for it to be exact."""
    low, high = numbers & ((1 << _HALF) - 1), numbers >> _HALF
    lows, highs = (np.bincount(codes, half, count).astype(np.int64) for half in (low, high))
    return (highs << _HALF) + lows
