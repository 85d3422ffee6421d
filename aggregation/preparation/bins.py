"""Bins that find their own range: first even bins of a signed logarithm, then even bins of the values themselves.

With s(x) = sign(x) · log2(1 + |x| / c), c = `SMALLEST`, even bins of s over ±`REACH` cover every magnitude up to
`LARGEST` in relative steps. What they count shows where the values lie, and the next round counts in even bins of that
range alone. Devices compute a bin by arithmetic, and an arithmetic may put a value that lies on an edge into the bin
beside it; ranges are therefore taken one bin wider on both sides, and a value beyond the range counts in the end bin.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SMALLEST, LARGEST = 2.0**-20, 2.0**60
REACH = 80.5
"""s of `LARGEST` is 80; zero lies in the middle of a bin, so that a column of small whole numbers keeps its zeros
together.
"""

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Range:
    """Where even bins lie, for each of some groups of numbers. low, width: ``[groups]``, of the first bin's lower edge
    and of a bin; logarithmic: whether they are those of s.
    """

    low: Vector
    width: Vector
    logarithmic: bool

    @staticmethod
    def everything(groups: int, bins: int) -> "Range":
        """All magnitudes."""
        return Range(np.full(groups, -REACH), np.full(groups, 2 * REACH / bins), True)

    def edges(self, bins: int) -> Vector:
        """``[groups, bins + 1]``, in the values' own units."""
        edges = self.low[:, None] + self.width[:, None] * np.arange(bins + 1)
        return unlogarithm(edges) if self.logarithmic else edges

    def narrowed(self, counts: Vector, tail: float, floor: float) -> "Range":
        """The even bins that hold all but ``tail`` of the counts at either end, and one bin more on both sides.

        counts: ``[groups, bins]`` in these bins. floor: counts below it are taken for noise, as zeros. A group without
        any count keeps a range from -1 to 1.
        """
        groups, bins = counts.shape
        edges, low, width = self.edges(bins), np.full(groups, -1.0), np.full(groups, 2.0 / bins)
        for group in range(groups):
            held = np.where(counts[group] >= max(floor, 0.0), counts[group], 0.0).clip(0)
            if not held.sum() > 0:
                continue
            reached = np.cumsum(held) / held.sum()
            first = int(np.searchsorted(reached, tail, side="right"))
            last = min(int(np.searchsorted(reached, 1 - tail, side="left")), bins - 1)
            lower, upper = edges[group, max(first - 1, 0)], edges[group, min(last + 2, bins)]
            low[group], width[group] = lower, (upper - lower) / bins
        # Devices are told float32 numbers, and everybody means these.
        return Range(low.astype(np.float32).astype(float), width.astype(np.float32).astype(float), False)


def logarithm(values: npt.ArrayLike) -> Vector:
    """s of the values."""
    held = np.clip(np.asarray(values, np.float64), -LARGEST, LARGEST)
    return np.sign(held) * np.log2(1 + np.abs(held) / SMALLEST)


def unlogarithm(values: npt.ArrayLike) -> Vector:
    """The values of which these are s."""
    held = np.asarray(values, np.float64)
    return np.sign(held) * SMALLEST * (np.exp2(np.abs(held)) - 1)
