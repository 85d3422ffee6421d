"""Bins that find their own range: first even bins of a signed logarithm, then even bins of the values themselves.

With s(x) = sign(x) · log2(1 + |x| / c), c = `SMALLEST`, even bins of s over ±`REACH` cover every magnitude up to
`LARGEST` in relative steps. What they count shows where the values lie, and the next round counts in even bins of that
range alone. Devices compute a bin by arithmetic, and an arithmetic may put a value that lies on an edge into the bin
beside it; ranges are therefore taken one bin wider on both sides, and a value beyond the range counts in the end bin.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.protocol.arrays import FloatArrays, Vector

LOW, WIDTH, LOGARITHMIC = "low", "width", "logarithmic"
"""The names under which devices are told of them."""
SMALLEST, LARGEST = 2.0**-20, 2.0**60
REACH = 80.5
"""s of `LARGEST` is 80; zero lies in the middle of a bin, so that a column of small whole numbers keeps its zeros
together.
"""


@dataclass(frozen=True, eq=False)
class Range:
    """Where even bins lie, for each of some groups of numbers.

    low, width: ``[groups]``, of the first bin's lower edge and of a bin.
    logarithmic: whether they are those of s.
    """

    low: Vector
    width: Vector
    logarithmic: bool

    @staticmethod
    def everything(groups: int, bins: int) -> "Range":
        """All magnitudes."""
        return Range(np.full(groups, -REACH), np.full(groups, 2 * REACH / bins), True)

    @staticmethod
    def of_settings(settings: FloatArrays) -> "Range":
        """The inverse of `settings`."""
        return Range(settings[LOW].astype(float), settings[WIDTH].astype(float), bool(settings[LOGARITHMIC][0]))

    def settings(self) -> dict[str, npt.NDArray[np.float32]]:
        """What devices are told of it."""
        return {
            LOW: self.low.astype(np.float32),
            WIDTH: self.width.astype(np.float32),
            LOGARITHMIC: np.array([self.logarithmic], np.float32),
        }

    def edges(self, bins: int) -> Vector:
        """``[groups, bins + 1]``, in the values' own units."""
        edges = self.low[:, None] + self.width[:, None] * np.arange(bins + 1)
        return unlogarithm(edges) if self.logarithmic else edges

    def narrowed(self, counts: Vector, whole: float, tail: float, floor: float) -> "Range":
        """The even bins that hold all but ``tail`` of the counts at either end, and one bin more on both sides.

        counts: ``[groups, bins]`` in these bins.
        whole: how many there are of each group, or about so many.
        floor: a count below it is taken for noise, as zero; bins are joined until what is left is nearly all that there
            is. Where no bins stand out of the noise, the range stays as it is; where it was logarithmic, it becomes -1
            to 1.
        """
        groups, bins = counts.shape
        edges = self.edges(bins)
        low, width = (
            (np.full(groups, -1.0), np.full(groups, 2.0 / bins)) if self.logarithmic else (self.low, self.width)
        )
        low, width = low.copy(), width.copy()
        for group in range(groups):
            held = _standing_out(counts[group], whole, floor)
            if held is None:
                continue
            reached, joined = np.cumsum(held) / held.sum(), bins // held.size
            first = int(np.searchsorted(reached, tail, side="right"))
            last = min(int(np.searchsorted(reached, 1 - tail, side="left")), held.size - 1)
            lower, upper = edges[group, max(first - 1, 0) * joined], edges[group, min(last + 2, held.size) * joined]
            low[group], width[group] = lower, (upper - lower) / bins
        # Devices are told float32 numbers, and everybody means these.
        return Range(low.astype(np.float32).astype(float), width.astype(np.float32).astype(float), False)


NEARLY_ALL = 0.8


def _standing_out(counts: Vector, whole: float, floor: float) -> Vector | None:
    """The counts of as many bins, or of half, a quarter … as many, without those that are noise; None where that leaves
    too little at any width. The noise on a sum of bins grows as the root of their number.
    """
    joined = 1
    while joined < counts.size and counts.any():
        sums = counts.reshape(-1, joined).sum(axis=1)
        held = np.where(sums >= floor * joined**0.5, sums, 0.0).clip(0)
        if held.any() and held.sum() >= NEARLY_ALL * whole:
            return held
        joined *= 2
    return None


def logarithm(values: npt.ArrayLike) -> Vector:
    """s of the values."""
    held = np.clip(np.asarray(values, np.float64), -LARGEST, LARGEST)
    return np.sign(held) * np.log2(1 + np.abs(held) / SMALLEST)


def unlogarithm(values: npt.ArrayLike) -> Vector:
    """The values of which these are s."""
    held = np.asarray(values, np.float64)
    return np.sign(held) * SMALLEST * (np.exp2(np.abs(held)) - 1)
