"""The weighted mean and the plain sum, streaming, in float64.

float32 times a whole weight below 2**29 is exact in float64, so the only rounding is that of the additions: 2**-53
each, far below the 2**-24 of the float32 result.
"""

import math
from dataclasses import replace

import numpy as np

from coterie import errors
from coterie.aggregation.reducers.reducer import Accumulator, Chunks, Reducer, Vector, check_length

# 32 Ki elements of float64 and of float32 stay in a core's second-level cache, so each update is read from memory once.
BLOCK = 1 << 15


def _init(length: int) -> Accumulator:
    return Accumulator(np.zeros(length, np.float64))


def _add(acc: Accumulator, chunks: Chunks, weight: float) -> Accumulator:
    if not (math.isfinite(weight) and weight >= 0):
        raise errors.UpdateRefused(
            f"The weight of an update must be finite and not negative, not {weight}.", code="bad_weight"
        )
    total, scratch, covered = acc.total, np.empty(BLOCK, np.float64), 0
    for start, values in chunks:
        for low in range(0, values.size, BLOCK):
            block = values[low : low + BLOCK]
            scaled, into = scratch[: block.size], total[start + low : start + low + block.size]
            # Widened first: beside a Python number NumPy would multiply in float32, and mixed types take a slower loop.
            scaled[:] = block
            np.multiply(scaled, weight, out=scaled)
            np.add(into, scaled, out=into)
        covered += values.size
    if covered != total.size:
        raise errors.InternalError(f"An update's chunks cover {covered} of {total.size} elements.")
    return Accumulator(total, acc.weight + weight, acc.count + 1)


def _merge(left: Accumulator, right: Accumulator) -> Accumulator:
    check_length(left, right)
    np.add(left.total, right.total, out=left.total)
    return Accumulator(left.total, left.weight + right.weight, left.count + right.count)


def _mean(acc: Accumulator) -> Vector:
    if acc.weight <= 0:
        raise errors.UpdateRefused(
            f"{acc.count} updates have a total weight of zero, so there is nothing to average.",
            hint="Every client reported zero examples; check the clients' data.",
            code="zero_weight",
        )
    return acc.total / acc.weight


def _sum(acc: Accumulator) -> Vector:
    return acc.total.copy()


def _add_unweighted(acc: Accumulator, chunks: Chunks, weight: float) -> Accumulator:
    return _add(acc, chunks, 1.0)


def bounded_mean(name: str, bounds: tuple[float, ...]) -> Reducer:
    """The weighted mean of updates, each scaled down to the shortest of these lengths first. It needs no more memory
    than a mean but one update, and adds up in a tree: what is merged is no longer than such updates can make it, and is
    scaled down where it is.

    Raises errors.UpdateRefused (``not_finite``) for an update that is not.
    """

    def add(acc: Accumulator, chunks: Chunks, weight: float) -> Accumulator:
        held = [(start, np.asarray(values, np.float64)) for start, values in chunks]
        norm = math.sqrt(math.fsum(float(np.dot(values, values)) for _, values in held))
        if not math.isfinite(norm):
            raise errors.UpdateRefused("An update is not finite, so its length cannot be bounded.", code="not_finite")
        scale = min(1.0, *(bound / norm for bound in bounds)) if norm else 1.0
        scaled = ((start, values * scale if scale < 1 else values) for start, values in held)
        return _add(acc, scaled, weight)

    def merge(left: Accumulator, right: Accumulator) -> Accumulator:
        most = min(bounds) * right.weight
        norm = math.sqrt(float(np.dot(right.total, right.total)))
        # An honest sum is within rounding of it, and stays as it is.
        honest = norm <= most * (1 + 1e-9)
        return _merge(left, right if honest else replace(right, total=right.total * (most / norm)))

    return Reducer(name, _init, add, merge, _mean, measures=True)


MEAN = Reducer("mean", _init, _add, _merge, _mean)
SUM = Reducer("sum", _init, _add_unweighted, _merge, _sum)
