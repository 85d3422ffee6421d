"""Which rows a pass takes, and in which order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, cast
from zlib import crc32

import numpy as np

from coterie.compute.ir import NDArray
from coterie.draws import batch_order
from coterie.errors import ArgumentValueError


class Sampler(ABC):
    """A rule that gives the rows of each pass. It is a value: the same arguments give the same rows everywhere."""

    @abstractmethod
    def size(self, rows: int) -> int:
        """How many rows a pass over ``rows`` rows takes. Raises ArgumentValueError where the rule does not fit them."""

    @abstractmethod
    def order(self, rows: int, epoch: int) -> NDArray:
        """The numbers of the rows of one pass, int64 [size(rows)], each in [0, rows)."""


@dataclass(frozen=True)
class RandomSampler(Sampler):
    """All rows, in a new order each pass (or ``count`` of them)."""

    seed: int = 0
    count: int | None = None

    def size(self, rows: int) -> int:
        return rows if self.count is None else _at_most(self.count, rows)

    def order(self, rows: int, epoch: int) -> NDArray:
        return batch_order(rows, self.seed, epoch)[: self.size(rows)]


@dataclass(frozen=True)
class ReplacementSampler(Sampler):
    """``count`` rows a pass, each drawn from all."""

    count: int
    seed: int = 0

    def size(self, rows: int) -> int:
        return _positive(self.count)

    def order(self, rows: int, epoch: int) -> NDArray:
        return np.minimum((_uniform(self.size(rows), self.seed, epoch) * rows).astype(np.int64), rows - 1)


@dataclass(frozen=True, eq=False, repr=False)
class WeightedSampler(Sampler):
    """``count`` rows a pass, each drawn with a probability in proportion to its weight.

    weights: one a row, finite and not negative, not all zero.
    """

    weights: NDArray
    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights, np.float64)
        if weights.ndim != 1 or not np.isfinite(weights).all() or (weights < 0).any() or not weights.sum() > 0:
            raise ArgumentValueError("WeightedSampler: the weights must be one finite number a row, none negative.")
        object.__setattr__(self, "weights", weights)

    def __repr__(self) -> str:
        return f"WeightedSampler({_told(self.weights)}, count={self.count}, seed={self.seed})"

    def size(self, rows: int) -> int:
        if len(self.weights) != rows:
            raise ArgumentValueError(f"WeightedSampler: {len(self.weights)} weights for {rows} rows.")
        return _positive(self.count)

    def order(self, rows: int, epoch: int) -> NDArray:
        ends = np.cumsum(self.weights)
        drawn = _uniform(self.size(rows), self.seed, epoch) * ends[-1]
        # A row of weight zero ends where the row before it does, so the search passes over it; and rounding must not
        # reach behind the last row that has a weight.
        last = int(np.flatnonzero(self.weights)[-1])
        return np.minimum(cast(Any, np).searchsorted(ends, drawn, side="right"), last)


@dataclass(frozen=True, eq=False, repr=False)
class SubsetSampler(Sampler):
    """These rows, in this order, each pass."""

    indices: NDArray

    def __post_init__(self) -> None:
        indices = np.asarray(self.indices)
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            raise ArgumentValueError("SubsetSampler: the indices must be a list of whole numbers.")
        object.__setattr__(self, "indices", indices.astype(np.int64))

    def __repr__(self) -> str:
        return f"SubsetSampler({_told(self.indices)})"

    def size(self, rows: int) -> int:
        if self.indices.size and (self.indices.min() < 0 or self.indices.max() >= rows):
            raise ArgumentValueError(f"SubsetSampler: the indices must lie in 0 … {rows - 1}.")
        return len(self.indices)

    def order(self, rows: int, epoch: int) -> NDArray:
        return self.indices


@dataclass(frozen=True, eq=False, repr=False)
class BalancedSampler(Sampler):
    """``count`` rows a pass, every class as often as the others (to one row), whatever their sizes.

    labels: the class of each row. A class's rows are all taken once, in a new order, before any of them is taken again.
    """

    labels: NDArray
    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        labels = np.asarray(self.labels)
        if labels.ndim != 1 or labels.dtype.kind not in "biuU":
            raise ArgumentValueError("BalancedSampler: the labels must be one whole number or text a row.")
        object.__setattr__(self, "labels", labels)

    def __repr__(self) -> str:
        return f"BalancedSampler({_told(self.labels)}, count={self.count}, seed={self.seed})"

    def size(self, rows: int) -> int:
        if len(self.labels) != rows:
            raise ArgumentValueError(f"BalancedSampler: {len(self.labels)} labels for {rows} rows.")
        return _positive(self.count)

    def order(self, rows: int, epoch: int) -> NDArray:
        classes, of_row = np.unique(self.labels, return_inverse=True)
        size, count = self.size(rows), len(classes)
        columns = [self._of_class(np.flatnonzero(of_row == c), -(-size // count), c, epoch) for c in range(count)]
        turns = np.stack(columns, axis=1).reshape(-1)[:size]
        return turns[batch_order(size, self.seed, epoch)]

    def _of_class(self, members: NDArray, wanted: int, number: int, epoch: int) -> NDArray:
        rounds = -(-wanted // len(members))
        orders = [batch_order(len(members), self.seed + 1 + number, epoch * rounds + again) for again in range(rounds)]
        return members[np.concatenate(orders)[:wanted]]


def _uniform(count: int, seed: int, epoch: int) -> NDArray:
    # A key of its own beside that of `batch_order`, so that drawing is not tied to shuffling.
    stream = np.random.Philox(key=np.array([seed % 2**64, epoch], np.uint64), counter=np.array([0, 0, 0, 1], np.uint64))
    return (stream.random_raw(count) >> np.uint64(11)) * 2.0**-53


def _positive(count: int) -> int:
    if count < 1:
        raise ArgumentValueError(f"A sampler needs a count of at least 1, got {count}.")
    return count


def _at_most(count: int, rows: int) -> int:
    if not 0 < count <= rows:
        raise ArgumentValueError(f"RandomSampler: {count} of {rows} rows cannot be taken without taking one twice.")
    return count


def _told(numbers: NDArray) -> str:
    """Numbers in few characters, others for other numbers."""
    return f"{len(numbers)} numbers {crc32(np.ascontiguousarray(numbers).tobytes()):08x}"
