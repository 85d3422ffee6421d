"""Drawing whole numbers from a table of probabilities that is exact to 144 bits.

A draw is a number U, uniform in [0, 2**144), and its value is the one into whose interval U falls. The first 16 bits
(the cell) decide nearly always: a guide holds the value of every cell that lies inside one interval. Where a cell is
cut, 128 more bits are drawn, the upper 48 of them are compared in NumPy, and if even these tie, all in whole numbers of
Python. So a draw costs little more than two bytes and one look-up, and no bit of the table's precision is given up.

The time of a draw depends on its value (a cut cell, a tie). Noise is drawn where nobody who must not learn it can
measure that: before an upload is sent, or in a job of the coordinator.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from coterie.privacy.dp.noise.source import NoiseSource

_CELL_BITS = 16
_REST_BITS = 128
PRECISION = _CELL_BITS + _REST_BITS
"""The bits of a probability."""
GROUP = 1 << 16
"""Draws at a time: cells and values of a group stay in a core's caches."""
_CUT = np.iinfo(np.int16).min


@dataclass(frozen=True)
class Table:
    """A distribution over whole numbers in a row.

    least: the first of them.
    thresholds: for every number but the last, the probability of it or a smaller one, times 2**144, rounded down.
    distance: a bound of the total variation distance from the distribution that is meant.
    """

    least: int
    thresholds: tuple[int, ...]
    distance: float
    guide: npt.NDArray[np.int16] = field(repr=False, compare=False)
    first: npt.NDArray[np.int32] = field(repr=False, compare=False)
    upper: npt.NDArray[np.uint64] = field(repr=False, compare=False)

    @staticmethod
    def of(least: int, weights: Sequence[int], missing: float) -> "Table":
        """The table of numbers least, least + 1, … with probabilities in proportion to whole, non-negative weights.

        missing: the distance of these from what is meant (tails that are cut off, rounded weights). At most 32 000
        numbers: values are kept in 16 bits.
        """
        sums = tuple(accumulate(weights))
        thresholds = tuple((part << PRECISION) // sums[-1] for part in sums[:-1])
        upper = np.array([min(part >> (PRECISION - 64), (1 << 64) - 1) for part in thresholds], np.uint64)
        cells = upper >> np.uint64(64 - _CELL_BITS)
        first = np.searchsorted(cells, np.arange(1 << _CELL_BITS, dtype=np.uint64), side="left").astype(np.int32)
        guide = (first + least).astype(np.int16)
        guide[cells.astype(np.int64)] = _CUT
        return Table(least, thresholds, missing + len(weights) * 2.0**-PRECISION, guide, first, upper)

    def draw(self, count: int, source: NoiseSource) -> npt.NDArray[np.int64]:
        """`count` independent draws."""
        values = np.empty(count, np.int64)
        for start in range(0, count, GROUP):
            cells = source.words16(min(GROUP, count - start))
            found = np.take(self.guide, cells)
            cut = np.flatnonzero(found == _CUT)
            values[start : start + cells.size] = found
            if cut.size:
                values[start + cut] = self._look_closer(cells[cut], source.words64(2 * cut.size).reshape(-1, 2))
        return values

    def _look_closer(self, cells: npt.NDArray[np.uint16], rest: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """The values of draws whose cell is cut.

        rest: 128 bits for each, the upper 64 first.
        """
        upper = (cells.astype(np.uint64) << np.uint64(48)) | (rest[:, 0] >> np.uint64(16))
        # Nearly every cut cell holds one threshold alone; where there are more, they are searched.
        index = np.take(self.first, cells).astype(np.int64)
        index += np.take(self.upper, index) < upper
        more = np.flatnonzero(np.take(self.upper, index, mode="clip") < upper)
        index[more] = np.searchsorted(self.upper, upper[more], side="left")
        for tie in np.flatnonzero(np.take(self.upper, index, mode="clip") == upper):
            whole = int(cells[tie]) << _REST_BITS | int(rest[tie, 0]) << 64 | int(rest[tie, 1])
            index[tie] = bisect_right(self.thresholds, whole)
        return index + self.least
