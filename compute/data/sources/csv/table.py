"""From cells to columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from coterie.compute.data.sources.csv.cells import BadText, Cells
from coterie.compute.data.sources.csv.numbers import numbers
from coterie.compute.ir import NDArray

Part: TypeAlias = "NDArray | list[str]"
"""The values of one column in some lines."""
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
FLOATS = ("float16", "float32", "float64")
BLANKS = (ord(" "), ord("\t"))


@dataclass(frozen=True, slots=True)
class Group:
    """Places of a line's cells whose numbers are read together. whole: whether to look for whole numbers."""

    places: tuple[int, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Numeric:
    """A column of numbers: one place of a group, or all of them as a vector (``at`` is None).

    dtype: of INTEGERS or FLOATS, or None: int64 where every number is whole, else float64.
    """

    name: str
    group: int
    at: int | None
    dtype: str | None


@dataclass(frozen=True, slots=True)
class Text:
    """A column of text, from one place."""

    name: str
    place: int


@dataclass(frozen=True, slots=True)
class Found:
    """A group's numbers: float64[rows, places]; whole numbers int64, and where they are, if they were looked for."""

    values: NDArray
    whole: NDArray | None
    is_whole: NDArray | None


@dataclass(frozen=True, slots=True)
class Table:
    """How lines become columns.

    header: the names of the file's columns. missing: cells that stand for no number, the empty one among them.
    """

    header: tuple[str, ...]
    wanted: tuple[Numeric | Text, ...]
    groups: tuple[Group, ...]
    missing: frozenset[bytes]

    def read(self, cells: Cells) -> list[Part]:
        """The values of each wanted column. Raises BadText naming the first cell that does not hold what it should."""
        found = [self._numbers(cells, group) for group in self.groups]
        text = cells.buffer.tobytes() if any(isinstance(wanted, Text) for wanted in self.wanted) else b""
        return [
            _texts(cells, text, wanted)
            if isinstance(wanted, Text)
            else self._column(cells, wanted, found[wanted.group])
            for wanted in self.wanted
        ]

    def _numbers(self, cells: Cells, group: Group) -> Found:
        if not group.places:
            return Found(np.empty((len(cells.starts), 0)), None, None)
        starts, ends = _at(cells.starts, group.places), _at(cells.ends, group.places)
        read = numbers(cells.buffer, *_trimmed(cells.buffer, starts.reshape(-1), ends.reshape(-1)))
        if read.bad.any():
            self._require_missing(cells, group, read.bad.reshape(starts.shape))
        values = read.values.reshape(starts.shape)
        if not group.whole:
            return Found(values, None, None)
        whole, is_whole = read.whole()
        return Found(values, whole.reshape(starts.shape), is_whole.reshape(starts.shape))

    def _require_missing(self, cells: Cells, group: Group, bad: NDArray) -> None:
        for row, k in np.argwhere(bad).tolist():
            cell = cells.at(row, group.places[k])
            if cell.strip() not in self.missing:
                raise BadText(
                    row,
                    self.header[group.places[k]],
                    f"is {_shown(cell)}, not a number",
                    "Mend the cell; or name it in missing=, or read the column as text by the dtype 'str'.",
                )

    def _column(self, cells: Cells, wanted: Numeric, found: Found) -> NDArray:
        at = slice(None) if wanted.at is None else slice(wanted.at, wanted.at + 1)
        values = found.values[:, at]
        if found.whole is None or found.is_whole is None:
            column = values
        else:
            whole, is_whole = found.whole[:, at], found.is_whole[:, at]
            if wanted.dtype in INTEGERS:
                limits = np.iinfo(wanted.dtype)
                self._require(
                    cells, wanted, is_whole & (whole >= limits.min) & (whole <= limits.max), "whole number of"
                )
                column = whole
            else:
                column = whole if wanted.dtype is None and is_whole.all() else values
        if wanted.dtype is not None:
            with np.errstate(over="ignore"):
                column = column.astype(wanted.dtype, copy=False)
            if wanted.dtype in FLOATS[:-1]:
                self._require(cells, wanted, np.isfinite(column) | ~np.isfinite(values), "number in the range of")
        return np.ascontiguousarray(column if wanted.at is None else column[:, 0])

    def _require(self, cells: Cells, wanted: Numeric, good: NDArray, what: str) -> None:
        if good.all():
            return
        row, k = np.argwhere(~good)[0].tolist()
        place = self.groups[wanted.group].places[k if wanted.at is None else wanted.at]
        cell = cells.at(row, place)
        told = f"is {_shown(cell)}, not a {what} {wanted.dtype}" if cell.strip() else "is empty"
        raise BadText(row, self.header[place], told, "Read the column as float64, in which empty cells are NaN.")


def _at(array: NDArray, places: Sequence[int]) -> NDArray:
    return array if [*places] == [*range(array.shape[1])] else array[:, np.array(places, np.int64)]


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
        if not np.any(buffer == blank):
            continue
        while (leading := (buffer[starts] == blank) & (starts < ends)).any():
            starts = starts + leading
        while (trailing := (buffer[ends - 1] == blank) & (starts < ends)).any():
            ends = ends - trailing
    return starts, ends


def _shown(cell: bytes) -> str:
    return repr(cell[:40].decode("utf-8", "backslashreplace") + ("…" if len(cell) > 40 else ""))
