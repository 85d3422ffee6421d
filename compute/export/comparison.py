"""How much two arrays of results are alike, when one of them was computed with fewer digits."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from coterie.compute.ir import NDArray
from coterie.errors import InputError


@dataclass(frozen=True, slots=True)
class Similarity:
    """cosine: of the angle between both as vectors, 1 for the same direction. euclidean: 1 less the distance divided by
    the length of the first, 1 for equal. largest: the greatest difference of two elements, divided by the greatest
    element of the first.

    Both zero count as equal. Of arrays with infinities or NaN, those at the same places count as equal and one at
    another place makes them unlike: cosine and euclidean 0, largest infinite.
    """

    cosine: float
    euclidean: float
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What counts as the same model: the least cosine and euclidean similarity and the greatest ``largest``."""

    cosine: float
    euclidean: float
    largest: float = float("inf")

    def misses(self, found: Similarity) -> str:
        """What a similarity falls short of, in words; "" when it holds."""
        told = [
            f"{name} similarity {value:.4g} is below {least:g}"
            for name, value, least in (
                ("cosine", found.cosine, self.cosine),
                ("euclidean", found.euclidean, self.euclidean),
            )
            if not value >= least
        ]
        if not found.largest <= self.largest:
            told.append(f"the greatest relative difference {found.largest:.4g} is above {self.largest:g}")
        return ", ".join(told)


def worst(found: Iterable[Similarity]) -> Similarity:
    """The least similarity of several. Raises InputError for none."""
    listed = list(found)
    if not listed:
        raise InputError("worst: there is nothing to compare.")
    return Similarity(
        min(each.cosine for each in listed),
        min(each.euclidean for each in listed),
        max(each.largest for each in listed),
    )


def similarity(reference: NDArray, other: NDArray) -> Similarity:
    """How much an array is like a reference of the same shape. Raises InputError for another shape."""
    if reference.shape != other.shape:
        raise InputError(f"similarity: the shapes {list(reference.shape)} and {list(other.shape)} differ.")
    a, b = (array.astype(np.float64).reshape(-1) for array in (reference, other))
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return Similarity(0.0, 0.0, float("inf"))
    a, b = a[finite], b[finite]
    if np.array_equal(a, b):
        return Similarity(1.0, 1.0, 0.0)
    length, other_length = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    cosine = float(a @ b) / (length * other_length) if length and other_length else 0.0
    euclidean = 1.0 - float(np.linalg.norm(a - b)) / length if length else 0.0
    greatest = float(np.abs(a).max())
    largest = float(np.abs(a - b).max()) / greatest if greatest else float("inf")
    return Similarity(cosine, euclidean, largest)
