"""What a reducer is: a commutative monoid that turns updates into one aggregate."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.reducers.source import UpdateSource
from coterie.protocol.arrays import Vector

ReducerInput = Literal["sums", "updates"]
"""What a rule must see: sums over updates, which a tree of aggregators can form, or every single update."""
Reference = Literal["trusted", "previous"]
"""One more vector that a rule sees: an update that the caller trusts, without which the rule says nothing, or the
aggregate of the round before, which is zero at first.
"""
Chunks = Iterable[tuple[int, npt.NDArray[np.float32] | npt.NDArray[np.float64]]]


@dataclass(frozen=True)
class Accumulator:
    """What has been added so far: a float64 vector of weighted sums, the sum of the weights, the number of updates.

    rows: the updates themselves, for a rule that must see every one; its ``total`` stays zero.
    """

    total: Vector
    weight: float = 0.0
    count: int = 0
    rows: tuple[npt.NDArray[np.float32], ...] = ()


@dataclass(frozen=True)
class Reducer:
    """A rule by its name: four functions that obey the monoid's laws.

    init(length) is the neutral element. add(acc, chunks, weight) takes in one update, given as (start, elements) that
    cover it once, and *consumes* ``acc``: its vector is reused, so memory is that of one model however many updates
    come. merge(a, b) joins two accumulators, consuming ``a``. result(acc) is the aggregate, float64.
    needs: ``sums`` when an accumulator is made of sums, which a tree of aggregators can form; ``updates`` when it must
        keep every update.
    fewest: the least number of updates that give a result, and because of what.
    over(source): the result over updates that are read in blocks, for a rule that needs ``updates`` and need not hold
        them all at once.
    reference: what it sees beside the updates, if anything.
    beside(vector ``[length]``): the same rule with that reference, float32, and no other difference.
    measures: whether it reads lengths of whole updates or distances between them, and not each coordinate alone.
    most: the greatest number of updates that it can take, and beyond: why no more; None when there is no such number.

    Guarantees: any grouping and order of the same updates gives the same result to 1 ulp of float32; the neutral
    element changes nothing. result raises errors.UpdateRefused (``zero_weight``) when there is nothing to divide by.
    """

    name: str
    init: Callable[[int], Accumulator]
    add: Callable[[Accumulator, Chunks, float], Accumulator]
    merge: Callable[[Accumulator, Accumulator], Accumulator]
    result: Callable[[Accumulator], Vector]
    needs: ReducerInput = "sums"
    fewest: int = 1
    over: Callable[[UpdateSource], Vector] | None = None
    reference: Reference | None = None
    beside: "Callable[[npt.NDArray[np.float32]], Reducer] | None" = None
    measures: bool = False
    because: str = ""
    most: int | None = None
    beyond: str = ""


def check_length(left: Accumulator, right: Accumulator) -> None:
    """Raise errors.InputError (``length_mismatch``) unless two accumulators are of one length."""
    if left.total.shape != right.total.shape:
        raise errors.InputError(
            f"Accumulators of {left.total.size} and {right.total.size} elements cannot be merged.",
            code="length_mismatch",
        )
