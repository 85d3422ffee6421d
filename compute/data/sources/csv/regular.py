"""Files of numbers in which every column writes its numbers alike: whole, or with so many digits after the point.

Most tables that programs write are such. Nothing has to be found out cell by cell then: one pass over the text gives
every byte the number that the last digits up to it write, 64 bytes to an instruction, and a cell's value is what stands
at known distances before its end. That is a half to three quarters of the work of reading any notation (`decimals`).

It is never guessed: text with one cell that is otherwise, or empty, is not read here at all.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from coterie.compute.data.sources.csv.cells import NEWLINE, RETURN, Cells, places
from coterie.compute.data.sources.csv.decimals import MINUS, PADDING, ZERO, padded
from coterie.compute.data.sources.csv.lines import BLOCK_BYTES
from coterie.compute.data.sources.csv.numbers import POINT, numbers
from coterie.compute.data.sources.csv.table import INTEGERS, Numeric, Part, Table
from coterie.compute.ir import NDArray

# Rows that show how columns write their numbers.
SHOWN = 1000
MOST_FRACTION = 7
# With two steps of four digits before the point, 15 digits in all: exact in float64.
LONG_STEP, SHORT_STEP = 4, 2
TEN = np.uint8(10)
HUNDRED = np.uint16(100)
SIGN_PLACE = np.uint64(63)


@dataclass(frozen=True, slots=True)
class Digits:
    """Some digits of every cell.

    place: of the last of them in the padded text, less the cell's end in the text; the same for all cells, or int64 for
    each. scale: float64, what they count, for each cell; None for one.
    """

    place: "int | NDArray"
    scale: NDArray | None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Regular:
    """How to read the text of a file whose columns are regular; see `learn`.

    wanted: columns, their places among ``numeric``, which are columns of the file, and their dtypes.

    Arrays hold a value for each cell of as many rows as a block can have. step: the digits that are read at once.
    digits: those of cells with up to ``step`` of them before the point; more: the next ``step``. fixed: int64, a cell's
    bytes, its separator among them, but for a sign and the digits before the point. pointed: bool. point: the place of
    a pointed cell's point, as in `Digits`. power: float64, 10 to the digits after the point.
    """

    wanted: "tuple[tuple[Numeric, str], ...]"
    numeric: tuple[int, ...]
    delimiter: int
    width: int
    pointed_columns: int
    step: int
    digits: tuple[Digits, ...]
    more: Digits
    fixed: NDArray
    pointed: NDArray
    point: "int | NDArray"
    power: NDArray

    def read(self, text: bytes) -> list[Part] | None:
        """The values of each wanted column in some whole lines; None if any cell is otherwise than it should be."""
        values = self._values(text)
        if values is None:
            return None
        parts: list[Part] = []
        for wanted, dtype in self.wanted:
            at = [self.numeric[place] for place in wanted.places]
            chosen = values[:, at[0] : at[-1] + 1] if _follow(at) else values[:, at]
            part = _converted(chosen, dtype)
            if part is None:
                return None
            parts.append(np.ascontiguousarray(part if wanted.vector else part[:, 0]))
        return parts

    def _values(self, text: bytes) -> NDArray | None:
        """float64[rows, width]: all cells."""
        text = text if text.endswith(b"\n") else text + b"\n"
        buffer, size = padded(text), len(text)
        known, body = buffer[: PADDING + size], buffer[PADDING : PADDING + size]
        newlines = buffer[PADDING:] == NEWLINE
        separators = buffer[PADDING:] == self.delimiter
        separators |= newlines
        ends = places(separators)
        rows = ends.size // self.width
        last = ends[self.width - 1 :: self.width]
        if ends.size != rows * self.width or ends.size > self.fixed.size or not _are_all(newlines, last):
            return None
        negative = _first_bytes(body, ends) == MINUS
        beyond = _lengths(ends)
        beyond -= self.fixed[: ends.size]
        digits = known - np.uint8(ZERO)
        written = digits < TEN
        # Each byte is a digit, a separator, a sign before digits, or a point at its place, and is counted once.
        signs, pointed = np.count_nonzero(negative), rows * self.pointed_columns
        foreign = size - np.count_nonzero(written[PADDING:]) - ends.size - signs - pointed
        if foreign:
            if foreign != rows or not (body.take(last - 1) == RETURN).all():
                return None
            last -= 1
            beyond[self.width - 1 :: self.width] -= 1
        if pointed:
            points = _at(known, ends, self.point) == POINT
            points &= self.pointed[: ends.size]
            if np.count_nonzero(points) != pointed:
                return None
        if not self._have_digits(beyond, negative):
            return None
        values = self._sums(_numbers_up_to(digits, written, self.step), ends, beyond, negative)
        values /= self.power[: ends.size]
        if signs:
            # The sign is the highest bit of a float64, also of zero.
            highest = negative.astype(np.uint64)
            highest <<= SIGN_PLACE
            bits = values.view(np.uint64)
            bits |= highest
        return values.reshape(rows, self.width)

    def _have_digits(self, beyond: NDArray, negative: NDArray) -> bool:
        """Whether all cells have digits, but no more before the point than are read. beyond: those, and a sign."""
        most = 2 * self.step
        if int(beyond.min(initial=0)) < 0:
            return False
        if int(beyond.max(initial=0)) > most and int((beyond - negative).max()) > most:
            return False
        empty = beyond < 1
        lone = beyond == 1
        lone &= negative
        empty |= lone
        empty &= ~self.pointed[: beyond.size]
        return not empty.any()

    def _sums(self, table: NDArray, ends: NDArray, beyond: NDArray, negative: NDArray) -> NDArray:
        """float64: the digits of each cell as a whole number, exact."""
        total = _scaled(table, ends, self.digits[0])
        for digits in self.digits[1:]:
            total += _scaled(table, ends, digits)
        if int(beyond.max(initial=0)) > self.step:
            further = _scaled(table, ends, self.more)
            # What stands there is the cell's only if it has so many digits.
            further *= beyond - negative > self.step
            total += further
        return total


def learn(table: Table, sample: Cells, delimiter: int) -> Regular | None:
    """How to read a file like the sample. None where a column holds text, or writes its numbers in several ways.

    And where numbers stand for no number, which has to be looked for cell by cell.
    """
    starts, ends = sample.starts[:SHOWN], sample.ends[:SHOWN]
    columns = tuple(column for column in table.wanted if isinstance(column, Numeric))
    if not starts.size or sample.blank or len(columns) != len(table.wanted) or table.missing_numbers:
        return None
    shown = numbers(sample.buffer, starts, ends)
    fractions = shown.plain.fraction[0]
    if shown.bad.any() or shown.plain.bad.any() or (shown.plain.fraction != fractions).any():
        return None
    whole = [not fractions[list(table.numeric)][list(column.places)].any() for column in columns]
    if any(column.dtype in INTEGERS and not alone for column, alone in zip(columns, whole, strict=True)):
        return None
    dtypes = [column.dtype or ("int64" if alone else "float64") for column, alone in zip(columns, whole, strict=True)]
    before_point = int((ends - starts - fractions - (fractions > 0) - shown.plain.negative).max())
    if int(fractions.max()) > MOST_FRACTION or before_point > 2 * LONG_STEP:
        return None
    wanted = tuple(zip(columns, dtypes, strict=True))
    # A sample is a block, or all of a small file.
    return _of(fractions, before_point, wanted, table.numeric, delimiter, 2 * len(sample.starts))


def _of(
    fractions: NDArray,
    before_point: int,
    wanted: "tuple[tuple[Numeric, str], ...]",
    numeric: tuple[int, ...],
    delimiter: int,
    most_rows: int,
) -> Regular:
    # Steps of four digits are less work for each cell, steps of two for each byte. A sign takes the place of a digit.
    step = SHORT_STEP if before_point < SHORT_STEP else LONG_STEP
    pointed = fractions > 0
    fixed = np.where(pointed, fractions + 2, 1)
    rows = min(BLOCK_BYTES // int((fixed + ~pointed).sum()) + 2, most_rows)
    lists = [_digits(fraction, step) for fraction in fractions.tolist()]
    return Regular(
        wanted=wanted,
        numeric=numeric,
        delimiter=delimiter,
        width=fractions.size,
        pointed_columns=int(np.count_nonzero(pointed)),
        step=step,
        digits=tuple(_slot([column[k : k + 1] for column in lists], rows) for k in range(max(map(len, lists)))),
        more=_slot([[(column[-1][0] + step, column[-1][1] * 10**step)] for column in lists], rows),
        fixed=np.tile(fixed, rows),
        pointed=np.tile(pointed, rows),
        point=_place(fractions + 1, pointed, rows),
        power=np.tile(10.0**fractions, rows),
    )


def _digits(fraction: int, step: int) -> list[tuple[int, int]]:
    """Where digits are read in a column, and what they count: those after the point, then the last ones before it."""
    after = [(1 + place, 10**place) for place in range(0, fraction, step)]
    return [*after, (fraction + 2, 10**fraction)] if fraction else [(1, 1)]


def _slot(columns: list[list[tuple[int, int]]], rows: int) -> Digits:
    """The same digits of each column, none where a column's list is empty."""
    before, scale = np.array([column[0] if column else (1, 0) for column in columns]).T
    return Digits(
        _place(before, scale > 0, rows), None if (scale == 1).all() else np.tile(scale.astype(np.float64), rows)
    )


def _place(before: NDArray, counts: NDArray, rows: int) -> "int | NDArray":
    """From how far before the ends of each column's cells it is. counts: bool, the columns where it matters."""
    each = PADDING - before
    matter = np.unique(each[counts])
    return int(matter[0]) if matter.size == 1 else np.tile(each, rows)


def _are_all(marks: NDArray, wanted: NDArray) -> bool:
    """Whether these places are marked, and no others."""
    return np.count_nonzero(marks) == wanted.size and bool(marks.take(wanted).all())


def _lengths(ends: NDArray) -> NDArray:
    """int64: each cell's bytes, with its separator."""
    lengths = np.empty_like(ends)
    lengths[:1] = ends[:1] + 1
    np.subtract(ends[1:], ends[:-1], out=lengths[1:])
    return lengths


def _first_bytes(body: NDArray, ends: NDArray) -> NDArray:
    """Of each cell; of an empty one, what follows it."""
    first = np.empty(ends.size, np.uint8)
    first[:1] = body[:1]
    body[1:].take(ends[:-1], out=first[1:], mode="clip")
    return first


def _numbers_up_to(ones: NDArray, written: NDArray, step: int) -> NDArray:
    """For each byte the number that it writes with the digits before it, ``step`` in all; zero for what is no digit.

    ones: uint8, the digits, which is overwritten. written: bool, what is one.
    """
    digit = written.view(np.uint8)
    ones *= digit
    pairs = np.empty_like(ones)
    pairs[:1] = ones[:1]
    np.multiply(ones[:-1], TEN, out=pairs[1:])
    pairs[1:] += ones[1:]
    pairs *= digit
    if step == SHORT_STEP:
        return pairs
    # The pair before counts where it is of the same run of digits.
    joined = digit[1:-1] & digit[2:]
    joined *= pairs[:-2]
    fours = pairs.astype(np.uint16)
    hundreds = joined.astype(np.uint16)
    hundreds *= HUNDRED
    fours[2:] += hundreds
    return fours


def _at(table: NDArray, ends: NDArray, place: "int | NDArray") -> NDArray:
    """What the table has for one byte of each cell."""
    return table[place:].take(ends) if isinstance(place, int) else table.take(ends + place[: ends.size])


def _scaled(table: NDArray, ends: NDArray, digits: Digits) -> NDArray:
    found = _at(table, ends, digits.place).astype(np.float64)
    if digits.scale is not None:
        found *= digits.scale[: ends.size]
    return found


def _converted(values: NDArray, dtype: str) -> NDArray | None:
    """None for numbers beyond the range of the dtype."""
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        if values.size and (values.min() < limits.min or values.max() > limits.max):
            return None
    with np.errstate(over="ignore"):
        converted = values.astype(dtype, copy=False)
    return None if dtype == "float16" and np.isinf(converted).any() else converted


def _follow(columns: list[int]) -> bool:
    return columns == [*range(columns[0], columns[0] + len(columns))]
