"""Numbers of any usual notation in cells of text."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coterie.compute.data.sources.csv.decimals import Decimals, decimals
from coterie.compute.data.sources.csv.scaling import scaled
from coterie.compute.ir import NDArray

LOWER = 0x20
POINT = ord(".")
# What an exponent may take of a cell's end, from "e5" to "e-308".
EXPONENT_LENGTHS = range(2, 6)
# Python's float() also takes underscores and digits of other scripts, which no other program writes.
NUMBER = re.compile(rb"[ \t]*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf|infinity|nan)[ \t]*", re.IGNORECASE)
# Beyond the exponents of any float64.
FAR = np.uint64(100_000)
HIGHEST_BIT = np.uint64(63)


@dataclass(frozen=True, slots=True)
class Numbers:
    """What cells hold.

    values: float64, the nearest to the text (ties to even), as ``float(text)`` is; NaN where ``bad``. bad: bool, the
    cell is empty or no number. plain: the digits that were read, where they tell the value.
    """

    values: NDArray
    bad: NDArray
    plain: Decimals

    def whole(self) -> tuple[NDArray, NDArray]:
        """int64, and bool where it is the cell's number: without digits after a point, without exponent, in range."""
        digits = self.plain.mantissa.view(np.int64)
        fits = (digits >= 0) & (self.plain.fraction == 0) & ~self.plain.bad
        if self.plain.negative.any():
            # Two's complement: all bits turned over, and one added.
            sign = self.plain.negative.astype(np.int64)
            digits = (digits ^ -sign) + sign
        return digits, fits

    def strike(self, cells: NDArray) -> None:
        """Make these cells hold no number, in place. cells: bool."""
        self.values[cells] = np.nan
        self.bad[cells] = self.plain.bad[cells] = True
        self.plain.mantissa[cells] = self.plain.fraction[cells] = 0

    def at(self, columns: "slice | NDArray") -> "Numbers":
        """Some columns of cells in rows."""
        return self._mapped(lambda array: array[:, columns])

    def packed(self) -> "Numbers":
        """The same, one after another in memory, which pays where more than one pass is made over few columns."""
        return self._mapped(np.ascontiguousarray)

    def _mapped(self, change: Callable[[NDArray], NDArray]) -> "Numbers":
        plain = self.plain
        digits = Decimals(change(plain.mantissa), change(plain.fraction), change(plain.negative), change(plain.bad))
        return Numbers(change(self.values), change(self.bad), digits)


def numbers(buffer: NDArray, starts: NDArray, ends: NDArray) -> Numbers:
    """Read the cells ``buffer[starts[i]:ends[i]]``; the arguments are those of `decimals`."""
    plain = decimals(buffer, starts, ends)
    values, unsure = scaled(plain.mantissa, np.negative(plain.fraction))
    if plain.negative.any():
        # The sign is the highest bit of a float64, also of zero.
        values.view(np.uint64)[...] |= plain.negative.astype(np.uint64) << HIGHEST_BIT
    bad = plain.bad.copy() if unsure is None else plain.bad | unsure
    if bad.any():
        values[bad], bad[bad] = _with_exponents(buffer, starts[bad], ends[bad])
    return Numbers(values, bad, plain)


def _with_exponents(buffer: NDArray, starts: NDArray, ends: NDArray) -> tuple[NDArray, NDArray]:
    """The values of cells like ``-1.5e-07``, and which cells still are none."""
    middle = np.zeros(starts.shape, np.int64)
    for length in EXPONENT_LENGTHS:
        place = np.maximum(ends - length, starts)
        middle = np.where(buffer[place] | LOWER == ord("e"), place, middle)
    values = np.full(starts.shape, np.nan)
    bad = np.ones(starts.shape, np.bool_)
    chosen = np.flatnonzero(middle > starts)
    if chosen.size:
        mantissa = decimals(buffer, starts[chosen], middle[chosen])
        power = decimals(buffer, middle[chosen] + 1, ends[chosen])
        size = np.minimum(power.mantissa, FAR).view(np.int64)
        exponent = np.where(power.negative, -size, size) - mantissa.fraction
        found, unsure = scaled(mantissa.mantissa, exponent)
        values[chosen] = np.where(mantissa.negative, -found, found)
        pointed = (power.fraction != 0) | (buffer[ends[chosen] - 1] == POINT)
        bad[chosen] = mantissa.bad | power.bad | pointed | (False if unsure is None else unsure)
    for cell in np.flatnonzero(bad).tolist():
        text = buffer[starts[cell] : ends[cell]].tobytes()
        if NUMBER.fullmatch(text):
            values[cell], bad[cell] = float(text), False
        else:
            values[cell] = np.nan
    return values, bad
