"""Counting below edges: what histograms, quantiles and heavy hitters have in common.

Devices count, for each of some rising edges, their values below it. Edges travel as float32 in the version and are
compared as they are, so device and server mean the same bins to the last bit, whatever the device's arithmetic. Values
are compared as float32 too: whole numbers beyond ±2**24 as the nearest that it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coterie.aggregation.reducers import Vector

if TYPE_CHECKING:
    from coterie.aggregation.horizontal.algorithm import Arrays
    from coterie.compute.array import Array

EDGES = "edges"
Edges = npt.NDArray[np.float32]
"""``[intervals, bins + 1]``: rows of rising edges; bin j of a row is [edge j, edge j + 1)."""

NOWHERE = np.float32(0)
"""All edges of an interval that is not in use: nothing lies between equal edges."""


def below(values: Array, settings: Arrays) -> Array:
    """For each row: how many values it has, and how many lie below each edge.

    values: ``[B, elements]``; returns ``[B, 1 + edges]``.
    """
    from coterie.compute import numpy as xp

    flat = xp.reshape(settings[EDGES], (1, 1, -1))
    counts = xp.sum(xp.astype(values[:, :, None] < flat, xp.float32), axis=1)
    return xp.concat([xp.ones((values.shape[0], 1)) * float(values.shape[1]), counts], axis=1)


def size(edges: Edges) -> int:
    """How many sums `below` makes."""
    return 1 + edges.size


def inside(values: Array, settings: Arrays) -> Array:
    """For each row: how many values it has, how many lie in each bin, and a zero, ``[B, 2 + bins of all intervals]``:
    what is noised, since a value is in one bin of an interval and below many edges.

    values: ``[B, elements]``.
    """
    under = _below_edges(values, settings)
    return _with_ends(values, under[:, :, 1:] - under[:, :, :-1])


def parted(values: Array, settings: Arrays) -> Array:
    """As `inside`, with what lies below and above all bins of an interval as the first and the last of its bins."""
    from coterie.compute import numpy as xp

    under = _below_edges(values, settings)
    above = float(values.shape[1]) - under[:, :, -1:]
    return _with_ends(values, xp.concat([under[:, :, :1], under[:, :, 1:] - under[:, :, :-1], above], axis=2))


def _below_edges(values: Array, settings: Arrays) -> Array:
    """How many values of each row lie below each edge, ``[B, intervals, edges]``."""
    from coterie.compute import numpy as xp

    return xp.reshape(below(values, settings)[:, 1:], (values.shape[0], *settings[EDGES].shape))


def _with_ends(values: Array, bins: Array) -> Array:
    from coterie.compute import numpy as xp

    rows, elements = values.shape
    flat = xp.reshape(bins, (rows, -1))
    return xp.concat([xp.ones((rows, 1)) * float(elements), flat, xp.zeros((rows, 1))], axis=1)


def parts(total: Vector, edges: Edges) -> Vector:
    """``[intervals, bins + 2]``: values below, in each bin and above, of what `parted` makes."""
    return total[1:-1].reshape(edges.shape[0], edges.shape[1] + 1)


def part_weights(edges: Edges, elements: int) -> Vector:
    """The weights (see `bound`) of what `parted` makes: the number of values is what all parts make together."""
    weights = np.full(edges.shape[0] * (edges.shape[1] + 1) + 2, 1 / (elements * edges.shape[0] ** 0.5))
    weights[[0, -1]] = 0
    return weights


def counts(total: Vector, edges: Edges) -> tuple[float, Vector, Vector]:
    """(number of values; values below each interval ``[intervals]``; values in each bin ``[intervals, bins]``)."""
    under = total[1:].reshape(edges.shape)
    return float(total[0]), under[:, 0], np.diff(under, axis=1)


def even(low: float, high: float, bins: int) -> Edges:
    """One row of edges that cut [low, high] into bins of equal width; the last edge lies just above high."""
    row = cut(np.float32(low), np.float32(high), bins, max(abs(low), abs(high)))
    # Only the last edge is moved: a bin that begins at a whole number must begin exactly there.
    row[-1] = np.nextafter(row[-1], np.float32(np.inf))
    return row


def cut(lower: np.float32, upper: np.float32, bins: int, scale: float) -> Edges:
    """The edges that cut [lower, upper) into bins; the ends stay as they are.

    scale: the largest magnitude in question.

    Edges smaller than 2**-26 of the scale become 0: a version moves by steps in float64, and so small a number would
    not be left exactly when the step came from a large one.
    """
    row = np.linspace(float(lower), float(upper), bins + 1).astype(np.float32)
    row[np.abs(row) < scale * 2.0**-26] = 0
    row[0], row[-1] = lower, upper
    return np.maximum.accumulate(np.minimum(row, upper))
