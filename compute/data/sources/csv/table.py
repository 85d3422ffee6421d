"""From cells to columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np

from coterie.compute.data.sources.csv.cells import BLANKS, BadText, Cells
from coterie.compute.data.sources.csv.numbers import NUMBER, Numbers, numbers
from coterie.compute.ir import NDArray
from coterie.errors import InternalError

Part: TypeAlias = "NDArray | list[str]"
"""The values of one column in some lines."""
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
FLOATS = ("float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class Numeric:
    """A column of numbers: of one place of a line's cells, or of several as a vector.

    places: among those of numbers that the table reads. vector: whether a row's value is a vector; else there is one
    place. dtype: of INTEGERS or FLOATS, or None: int64 where every number is whole, else float64.
    """

    name: str
    places: tuple[int, ...]
    vector: bool
    dtype: str | None


@dataclass(frozen=True, slots=True)
class Text:
    """A column of text, from one place of a line's cells."""

    name: str
    place: int


@dataclass(frozen=True, slots=True)
class Table:
    """How lines become columns.

    header: the names of the file's columns. numeric: the places that hold numbers, which are all read together.
    missing: cells that stand for no number, the empty one among them.
    """

    header: tuple[str, ...]
    wanted: tuple[Numeric | Text, ...]
    numeric: tuple[int, ...]
    missing: frozenset[bytes]

    @property
    def missing_numbers(self) -> list[bytes]:
        """Cells that stand for no number although they are written as one, such as ``-999``."""
        return [cell for cell in self.missing if NUMBER.fullmatch(cell) and not np.isnan(float(cell))]

    def read(self, cells: Cells) -> list[Part]:
        """The values of each wanted column. Raises BadText naming the first cell that does not hold what it should."""
        found = self._numbers(cells) if self.numeric else None
        text = cells.buffer.tobytes() if any(isinstance(wanted, Text) for wanted in self.wanted) else b""
        return [
            _texts(cells, text, wanted) if isinstance(wanted, Text) else self._column(cells, wanted, found)
            for wanted in self.wanted
        ]

    def _numbers(self, cells: Cells) -> Numbers:
        places = _consecutive(self.numeric)
        starts, ends = cells.starts[:, places], cells.ends[:, places]
        if cells.blank:
            starts, ends = _trimmed(cells.buffer, starts, ends)
        read = numbers(cells.buffer, starts, ends)
        if read.bad.any():
            self._require_missing(cells, read.bad)
        for cell in self.missing_numbers:
            read.strike(_equal(cells.buffer, starts, ends, cell))
        return read

    def _require_missing(self, cells: Cells, bad: NDArray) -> None:
        for row, k in np.argwhere(bad).tolist():
            cell = cells.at(row, self.numeric[k])
            if cell.strip(BLANKS) not in self.missing:
                hint = "Mend the cell; or name it in missing=, or read the column as text by the dtype 'str'."
                if b"," in cell:
                    hint = "Write numbers with a decimal point, and with nothing between thousands."
                raise BadText(row, self.header[self.numeric[k]], f"is {_shown(cell)}, not a number", hint)

    def _column(self, cells: Cells, wanted: Numeric, found: Numbers | None) -> NDArray:
        if found is None:
            raise InternalError(f"No numbers were read for column {wanted.name!r}.")
        part = found.at(_consecutive(wanted.places))
        if not wanted.vector:
            part = part.packed()
        column = part.values
        if wanted.dtype in INTEGERS:
            limits = np.iinfo(wanted.dtype)
            column, is_whole = part.whole()
            self._require(cells, wanted, is_whole & (column >= limits.min) & (column <= limits.max), "whole number of")
        elif wanted.dtype is None and not part.plain.fraction.any():
            whole, is_whole = part.whole()
            column = whole if is_whole.all() else column
        if wanted.dtype is not None:
            with np.errstate(over="ignore"):
                column = column.astype(wanted.dtype, copy=False)
            if wanted.dtype in FLOATS[:-1] and np.isinf(column).any():
                self._require(cells, wanted, np.isfinite(column) | ~np.isfinite(part.values), "number in the range of")
        return np.ascontiguousarray(column if wanted.vector else column[:, 0])

    def _require(self, cells: Cells, wanted: Numeric, good: NDArray, what: str) -> None:
        if good.all():
            return
        row, k = cast(tuple[int, int], tuple(np.argwhere(~good)[0].tolist()))
        place = self.numeric[wanted.places[k]]
        cell = cells.at(row, place)
        told = f"is {_shown(cell)}, not a {what} {wanted.dtype}" if cell.strip(BLANKS) else "is empty"
        raise BadText(row, self.header[place], told, "Read the column as float64, in which empty cells are NaN.")


def _consecutive(places: Sequence[int]) -> "slice | NDArray":
    """Places as an index, which copies nothing where they follow one another."""
    if [*places] == [*range(places[0], places[0] + len(places))]:
        return slice(places[0], places[0] + len(places))
    return np.array(places, np.int64)


def _texts(cells: Cells, text: bytes, wanted: Text) -> list[str]:
    starts, ends = cells.starts[:, wanted.place].tolist(), cells.ends[:, wanted.place].tolist()
    if text.isascii():
        # One decoding for all, since a byte is a character.
        decoded = text.decode("ascii")
        values = [decoded[start:end] for start, end in zip(starts, ends, strict=True)]
    else:
        values: list[str] = []
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            try:
                values.append(text[start:end].decode("utf-8"))
            except UnicodeDecodeError:
                what = f"is {_shown(text[start:end])}, which is not UTF-8"
                raise BadText(row, wanted.name, what, "Save the file as UTF-8.") from None
    return [value.replace('""', '"') for value in values] if b'"' in text else values


def _trimmed(buffer: NDArray, starts: NDArray, ends: NDArray) -> tuple[NDArray, NDArray]:
    """The cells without blanks around them."""
    for blank in BLANKS:
        while (leading := (buffer[starts] == blank) & (starts < ends)).any():
            starts = starts + leading
        while (trailing := (buffer[ends - 1] == blank) & (starts < ends)).any():
            ends = ends - trailing
    return starts, ends


def _equal(buffer: NDArray, starts: NDArray, ends: NDArray, text: bytes) -> NDArray:
    """bool: the cells that hold this text."""
    equal = ends - starts == len(text)
    written = buffer[starts[equal][:, np.newaxis] + np.arange(len(text))]
    equal[equal] = (written == np.frombuffer(text, np.uint8)).all(axis=1)
    return equal


def _shown(cell: bytes) -> str:
    return repr(cell[:40].decode("utf-8", "backslashreplace") + ("…" if len(cell) > 40 else ""))
