"""Which of a device's rows are held out: never trained on, kept for evaluation."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = dict[str, NDArray[Any]]


def held_out(count: int, share: float) -> NDArray[np.bool_]:
    """For each of ``count`` rows whether it is held out.

    Row i is held out when a fixed hash of i, read as a fraction of [0, 1), is below ``share``. So the choice depends on
    a row's place in the data and on nothing else: it is the same in every round and experiment, on every machine, and
    rows appended later change nothing for those before them. About ``share`` of many rows are held out; of few rows it
    may be none. One row at least is always left to train on.
    """
    chosen = _hash(count) < int(share * 2**64)
    if count and chosen.all():
        chosen[0] = False
    return chosen


def split(arrays: Mapping[str, NDArray[Any]], share: float) -> tuple[Rows, Rows]:
    """(rows to train on, rows held out) of arrays of one common length."""
    mask = held_out(len(next(iter(arrays.values()))), share)
    return {name: array[~mask] for name, array in arrays.items()}, {name: array[mask] for name, array in arrays.items()}


def _hash(count: int) -> NDArray[np.uint64]:
    """SplitMix64 of 0 ..

    count-1 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 16).
    """
    z = (np.arange(1, count + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
