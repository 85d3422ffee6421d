"""A few coordinates with one sign between them, chosen so that large ones are likelier (Jiang, Zhou and Grossklags,
SignDS-FL, 2022).

A device draws a sign at random, takes as its top set the coordinates with the k largest values times that sign, and
sends h coordinates and the sign. Every set of h coordinates of which at least ν are in the top set has probability e**ε
times that of every other set, whatever the vector: k, h and ν are public, so that both normalisers are the same and
the ratio for any two vectors is at most e**ε. Pure ε, for all of what is sent.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.privacy.dp.randomised_response import odds

MOST_OUTPUTS = 256


@dataclass(frozen=True)
class SelectionShape:
    """The public numbers: length of the vector, top (k), outputs (h), threshold (ν)."""

    length: int
    top: int
    outputs: int
    threshold: int

    def __post_init__(self) -> None:
        fits = (
            1 <= self.threshold <= self.outputs <= min(self.top, MOST_OUTPUTS)
            and self.top + self.outputs <= self.length
        )
        if not fits:
            raise errors.ArgumentValueError(
                f"Of {self.length} coordinates {self.outputs} cannot be chosen with {self.threshold} of the top "
                f"{self.top}.",
                hint=f"threshold <= outputs <= top, at most {MOST_OUTPUTS} outputs, and top + outputs <= length.",
            )


@dataclass(frozen=True)
class SignSelection:
    """What is sent.

    coordinates: distinct, ascending.
    sign: 1 or -1, of all of them.
    """

    coordinates: npt.NDArray[np.int64]
    sign: int


def select(
    vector: npt.NDArray[np.float64], shape: SelectionShape, epsilon: float, source: NoiseSource
) -> SignSelection:
    """One draw.

    vector: finite; not otherwise bounded, since only the order of its coordinates counts.
    """
    sign = 1 - 2 * source.below(2)
    top = np.argpartition(vector * -sign, shape.top - 1)[: shape.top]
    weights = _weights(shape, odds(epsilon))
    drawn, hits = source.below(sum(weights)), 0
    while drawn >= weights[hits]:
        drawn -= weights[hits]
        hits += 1
    top.sort()
    inside = top[np.array(source.distinct(hits, shape.top), np.int64)]
    ranks = np.array(source.distinct(shape.outputs - hits, shape.length - shape.top), np.int64)
    # The coordinate outside of the top set that has `rank` others of its kind before it.
    outside = ranks + np.searchsorted(top - np.arange(shape.top), ranks, side="right")
    return SignSelection(np.sort(np.concatenate([inside, outside])), sign)


@lru_cache(maxsize=64)
def best_shape(length: int, share: float, epsilon: float, outputs: int | None = None) -> SelectionShape:
    """The public numbers that serve best: k = share · length, and the h (or `outputs`) and ν for which the expected
    count of top coordinates beyond chance, squared, is largest beside the number of coordinates sent.

    Raises errors.ArgumentValueError where so many outputs cannot be.
    """
    top = max(1, min(length - 1, round(share * length)))
    if outputs is not None:
        SelectionShape(length, top, outputs, 1)
    ratio = odds(epsilon)
    sizes = range(1, min(top, MOST_OUTPUTS, length - top) + 1) if outputs is None else (outputs,)
    best, most = None, -math.inf
    for size in sizes:
        chances = _chances(length, top, size)
        for threshold in range(1, size + 1):
            gain = _expected(chances, threshold, float(ratio)) - size * top / length
            if gain > 0 and gain * gain / size > most:
                best, most = SelectionShape(length, top, size, threshold), gain * gain / size
        if best is not None and size > 4 * best.outputs + 8:
            break  # the gain of one more coordinate only falls
    return best or SelectionShape(length, top, outputs or 1, 1)


def _chances(length: int, top: int, size: int) -> list[float]:
    """The hypergeometric chances of 0 … size hits of a set drawn at random."""
    whole = _log_binomial(length, size)
    return [
        math.exp(_log_binomial(top, hits) + _log_binomial(length - top, size - hits) - whole)
        for hits in range(size + 1)
    ]


def _expected(chances: list[float], threshold: int, ratio: float) -> float:
    raised = [chance * (ratio if hits >= threshold else 1.0) for hits, chance in enumerate(chances)]
    return sum(hits * chance for hits, chance in enumerate(raised)) / sum(raised)


def _log_binomial(whole: int, part: int) -> float:
    return math.lgamma(whole + 1) - math.lgamma(part + 1) - math.lgamma(whole - part + 1)


@lru_cache(maxsize=16)
def _weights(shape: SelectionShape, ratio: Fraction) -> tuple[int, ...]:
    """For 0 … h hits, the number of such sets times their weight: whole numbers."""
    return tuple(
        math.comb(shape.top, hits)
        * math.comb(shape.length - shape.top, shape.outputs - hits)
        * (ratio.numerator if hits >= shape.threshold else ratio.denominator)
        for hits in range(shape.outputs + 1)
    )
