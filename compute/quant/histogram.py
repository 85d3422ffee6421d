"""What is remembered of the numbers that a tensor had: extremes and counts, never the numbers.

Histograms add up, so they can come from batches, files, processes or clients: federated calibration is a sum of these.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from coterie.compute.ir import NDArray
from coterie.errors import InputError

Range: TypeAlias = tuple[float, float]
BINS = 2048


@dataclass(frozen=True, kw_only=True, eq=False)
class Histogram:
    """low, high: extremes of all numbers. counts: float64 [bins], how many lay in each of as many equal parts of
    ``bounds``; numbers outside count in the outermost parts. Without bounds only the extremes are known, and counts is
    empty. Counts are floats so that sums under noise fit as well.

    ``a + b`` is that of both: associative and commutative. Raises InputError for other bounds or bins, and for numbers
    that are not finite.
    """

    low: float
    high: float
    counts: NDArray
    bounds: Range | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite([self.low, self.high]).all() and self.low <= self.high):
            raise InputError(
                f"A histogram goes from one finite number to another, not from {self.low} to {self.high}.",
                hint="Look for NaN and infinity in what the model computes from the calibration rows.",
            )
        if self.bounds is None and self.counts.size:
            raise InputError("Counts without bounds say nothing: between which numbers were they taken?")

    @staticmethod
    def of(x: NDArray, bounds: Range | None = None, bins: int = BINS) -> "Histogram":
        """The histogram of the numbers of ``x``. Raises InputError for none and for numbers that are not finite."""
        if not x.size:
            raise InputError("There are no numbers to count.")
        low, high = float(x.min()), float(x.max())
        if bounds is None:
            return Histogram(low=low, high=high, counts=np.zeros(0))
        made = Histogram(low=low, high=high, counts=np.zeros(bins), bounds=bounds)
        width = bounds[1] - bounds[0]
        if not width > 0:
            # All numbers are one: every part is at the same place, and the first one counts them.
            made.counts[0] = x.size
            return made
        places = np.floor((x.reshape(-1).astype(np.float64) - bounds[0]) * (bins / width))
        made.counts[:] = np.bincount(np.clip(places, 0, bins - 1).astype(np.int64), minlength=bins)
        return made

    def __add__(self, other: "Histogram") -> "Histogram":
        if self.bounds != other.bounds or self.counts.shape != other.counts.shape:
            raise InputError(
                f"Histograms over {self.bounds} ({self.counts.size} parts) and {other.bounds} ({other.counts.size} "
                "parts) cannot be added.",
                hint="Fix the bounds first: observe extremes, then count between them.",
            )
        return Histogram(
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            counts=self.counts + other.counts,
            bounds=self.bounds,
        )

    @property
    def edges(self) -> NDArray:
        """Where the parts begin and end, float64 [bins + 1]. Raises InputError without bounds."""
        if self.bounds is None:
            raise InputError(
                "This histogram has extremes alone.", hint="Observe once more, with these extremes as bounds."
            )
        return np.linspace(*self.bounds, self.counts.size + 1)
