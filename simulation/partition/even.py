"""Partitions into parts of even size: at random, by time, by the value of a column."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.simulation.partition.checks import check, column, real, refuse, require, stream
from coterie.simulation.partition.value import Partition


def iid(count: int, clients: int, *, seed: int) -> Partition:
    """Rows 0 .. count-1 shuffled and cut into parts whose sizes differ by at most one.

    Raises ConfigurationError (``partition_empty``) when there are more clients than rows.
    """
    check(count, clients)
    order = stream(seed).permutation(count)
    return Partition.of("iid", count, np.array_split(order, clients), seed=seed)


def periods(times: NDArray[Any], clients: int) -> Partition:
    """Clients are periods of time: rows in the order of their times, cut into parts whose sizes differ by at most one.

    times: one per row, anything that sorts. Guarantee: no row of a client is older than a row of the client before it;
        rows of one instant keep their order. The clients in their order are the past to train on and the future to test
        on.
    Raises ConfigurationError (``partition_empty``).
    """
    values = column(times, "times")
    check(len(values), clients)
    return Partition.of("periods", len(values), np.array_split(np.argsort(values, kind="stable"), clients))


def continuous(values: NDArray[Any], clients: int, *, strictness: float, seed: int) -> Partition:
    """Skew by a real column: clients hold neighbouring values, the less so the lower ``strictness``.

    Rows are sorted by ``strictness * z + (1 - strictness) * noise``, where z is the column standardised and noise is
    standard normal, and cut into parts whose sizes differ by at most one. 1 gives quantile ranges, 0 an iid partition.
    Raises ConfigurationError (``partition_invalid``) for values that are not finite or a strictness outside 0..1.
    """
    given = column(values, "the values of the column")
    require(given.dtype.kind != "c", "the values of the column must be real, not complex numbers")
    try:
        found = given.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise refuse(f"the values of the column must be numbers: {error}") from error
    check(len(found), clients)
    require(bool(np.isfinite(found).all()), "the values of the column must be finite")
    strictness = real(strictness, "strictness")
    require(0 <= strictness <= 1, f"strictness must be in 0..1, not {strictness}")
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = float(found.std()) or 1.0
    require(bool(np.isfinite(deviation)), "the values of the column span a wider range than floats can represent")
    noise = stream(seed).standard_normal(len(found))
    keys = strictness * (found - found.mean()) / deviation + (1 - strictness) * noise
    parts = np.array_split(np.argsort(keys, kind="stable"), clients)
    return Partition.of("continuous", len(found), parts, seed=seed, strictness=strictness)
