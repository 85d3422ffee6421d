"""Columns of numbers as bins: what any one party does with its own columns before trees are grown."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Columns = Mapping[str, NDArray[np.float64]]
"""Numbers by name, ``[rows]`` each; NaN where a row lacks one."""


@dataclass(frozen=True, eq=False)
class BinnedColumns:
    """Columns of one party, each value as the number of its bin.

    names: of the columns.
    edges: of each column, rising: a value x is in the first bin k with x ≤ edges[k], in the last one beyond all edges.
    missing: of each column, whether it has one more bin, for rows that lack it.
    codes: ``[rows, columns]``.
    """

    names: tuple[str, ...]
    edges: tuple[NDArray[np.float64], ...]
    missing: tuple[bool, ...]
    codes: NDArray[np.uint16]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The bins of each column, that of missing values among them."""
        return tuple(len(edges) + 1 + lacks for edges, lacks in zip(self.edges, self.missing, strict=True))

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.codes)

    def goes_left(self, column: int, place: int, missing_left: bool, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these rows a split sends left.

        place: the last bin that goes left, at most the number of the column's edges.
        """
        codes = self.codes[rows, column]
        left = codes <= place
        if self.missing[column] and missing_left:
            left |= codes == len(self.edges[column]) + 1
        return left


def bin_columns(columns: Columns, bins: int) -> BinnedColumns:
    """Columns cut at their own values, so that each bin has about as many rows as any other.

    columns: checked (`coterie.aggregation.vertical.tables`).
    bins: at most so many of each, beside that for missing values. A column with at most so many different values has
        one for each.
    """
    edges = tuple(_edges(values, bins) for values in columns.values())
    codes = np.empty((len(next(iter(columns.values()), ())), len(columns)), np.uint16)
    missing: list[bool] = []
    for place, (values, cuts) in enumerate(zip(columns.values(), edges, strict=True)):
        absent = np.isnan(values)
        codes[:, place] = np.where(absent, len(cuts) + 1, np.searchsorted(cuts, np.where(absent, 0.0, values)))
        missing.append(bool(absent.any()))
    return BinnedColumns(tuple(columns), edges, tuple(missing), codes)


def no_columns(rows: int) -> BinnedColumns:
    """Of a label owner that has none."""
    return BinnedColumns((), (), (), np.empty((rows, 0), np.uint16))


def only(binned: BinnedColumns, rows: NDArray[np.int64]) -> BinnedColumns:
    """Some of the rows, in the same bins."""
    return replace(binned, codes=binned.codes[rows])


def _edges(values: NDArray[np.float64], bins: int) -> NDArray[np.float64]:
    present = np.sort(values[~np.isnan(values)])
    different = np.unique(present)
    if len(different) > bins:
        places = (np.arange(1, bins) * len(present)) // bins
        different = np.unique(np.concatenate([present[places], present[-1:]]))
    return different[:-1]
