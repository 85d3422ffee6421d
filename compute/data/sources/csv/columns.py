"""From cells to columns."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeAlias

import numpy as np

from coterie.compute.data.sources.csv.rows import BadText, is_utf8
from coterie.compute.ir import NDArray

BLANKS = " \t"
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
FLOATS = ("float16", "float32", "float64")
# Python's int and float also take underscores, other blanks and digits of other scripts, which no other program writes.
NUMBER = re.compile(r"[ \t]*[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity|nan))[ \t]*")
_WHOLE = re.compile(r"[+-]?[0-9]{1,400}\.?")
_ODD = re.compile(r"[^\t -^`-~]")


@dataclass(frozen=True, slots=True)
class Numeric:
    """A column of numbers, which collects its parts.

    places: of a row's cells. vector: whether a row's value is a vector; else there is one place. dtype: of INTEGERS or
    FLOATS, or None: int64 where every number is whole, else float64. missing: cells that stand for no number, the empty
    one among them.
    """

    places: tuple[int, ...]
    vector: bool
    dtype: str | None
    missing: frozenset[str]
    parts: list[NDArray] = field(default_factory=list[NDArray])

    def add(self, cells: Sequence[Sequence[str]]) -> None:
        """Take some rows. cells: by place. Raises BadText for the first that is no such number."""
        found: list[NDArray] = []
        refused: list[BadText] = []
        for place in self.places:
            try:
                found.append(self._values(cells[place], place))
            except BadText as bad:
                refused.append(bad)
        raise_first(refused)
        self.parts.append(np.stack(found, axis=1) if self.vector else found[0])

    def joined(self) -> NDArray:
        """The whole column. Whole numbers become float64 where other rows have other numbers."""
        return np.concatenate(self.parts)

    def _values(self, cells: Sequence[str], place: int) -> NDArray:
        values = np.array(self._numbers(cells, place))
        if self.dtype in FLOATS:
            with np.errstate(over="ignore"):
                narrow = values.astype(self.dtype, copy=False)
            lost = np.isinf(narrow) & np.isfinite(values)
            if lost.any():
                raise self._beyond(cells, int(lost.argmax()), place, "number in the range of")
            return narrow
        limits = np.iinfo(self.dtype or "int64")
        least, most = int(limits.min), int(limits.max)
        whole = [*takewhile(lambda number: number is not None, (self._whole(cell, least, most) for cell in cells))]
        if len(whole) == len(cells):
            return np.array(whole, self.dtype or "int64")
        if self.dtype is not None:
            raise self._beyond(cells, len(whole), place, "whole number of")
        for row in np.flatnonzero((values == 0) & np.signbit(values)).tolist():
            # Among whole numbers "-0" has no sign, and no other rows may give it one.
            if self._whole(cells[row], least, most) is not None:
                values[row] = 0.0
        return values

    def _numbers(self, cells: Sequence[str], place: int) -> list[float]:
        if len(self.missing) == 1 and not _ODD.search("".join(cells)):
            # Nothing here is a number to Python alone.
            try:
                return [*map(float, cells)]
            except ValueError:
                pass
        return [self._number(cell, row, place) for row, cell in enumerate(cells)]

    def _number(self, cell: str, row: int, place: int) -> float:
        if cell.strip(BLANKS) in self.missing:
            return float("nan")
        if NUMBER.fullmatch(cell):
            return float(cell)
        hint = "Mend the cell; or name it in missing=, or read the column as text by the dtype 'str'."
        if "," in cell:
            hint = "Write numbers with a decimal point, and with nothing between thousands."
        raise BadText(f"is {_shown(cell)}, not a number", hint, row, place)

    def _whole(self, cell: str, least: int, most: int) -> int | None:
        """A cell's number, if it has neither digits after a point nor an exponent and is in range."""
        text = cell.strip(BLANKS)
        if text in self.missing or not _WHOLE.fullmatch(text):
            return None
        number = int(text.removesuffix("."))
        return number if least <= number <= most else None

    def _beyond(self, cells: Sequence[str], row: int, place: int, what: str) -> BadText:
        cell = cells[row]
        told = f"is {_shown(cell)}, not a {what} {self.dtype}" if cell.strip(BLANKS) else "is empty"
        return BadText(told, "Read the column as float64, in which empty cells are NaN.", row, place)


@dataclass(frozen=True, slots=True)
class Text:
    """A column of text, from one place of a row's cells, which collects its parts. Categories come again and again: one
    object for each saves memory.
    """

    place: int
    parts: list[str] = field(default_factory=list[str])
    seen: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, cells: Sequence[Sequence[str]]) -> None:
        """Take some rows. cells: by place. Raises BadText for one that is not UTF-8."""
        for row, cell in enumerate(cells[self.place]):
            if not is_utf8(cell):
                raise BadText(f"is {_shown(cell)}, which is not UTF-8", "Save the file as UTF-8.", row, self.place)
            self.parts.append(self.seen.setdefault(cell, cell))

    def joined(self) -> list[str]:
        """The whole column."""
        return self.parts


Column: TypeAlias = Numeric | Text
Chosen: TypeAlias = Mapping[str, str | Sequence[str]]
"""The columns to make: name → a column of the file, or several of them as one vector a row."""


def planned(
    header: tuple[str, ...],
    sample: Sequence[Sequence[str]],
    chosen: Chosen,
    dtypes: Mapping[str, str],
    missing: str | Sequence[str],
) -> dict[str, Column]:
    """How to read a file whose first rows are ``sample``, by place.

    A column whose dtype is not given holds numbers if its first cell that is neither empty nor missing is one, and text
    otherwise.
    """
    gaps = frozenset([missing] if isinstance(missing, str) else missing) | {""}
    columns: dict[str, Column] = {}
    for name, asked in chosen.items():
        vector = not isinstance(asked, str)
        places = tuple(header.index(part) for part in (asked if vector else [asked]))
        first = next((cell for cell in sample[places[0]] if cell.strip(BLANKS) not in gaps), "0")
        is_text = not vector and name not in dtypes and not NUMBER.fullmatch(first)
        text = is_text or dtypes.get(name) == "str"
        columns[name] = Text(places[0]) if text else Numeric(places, vector, dtypes.get(name), gaps)
    return columns


def raise_first(refused: Sequence[BadText]) -> None:
    """Raise the first of some refusals in the order of the rows; nothing where there are none."""
    if refused:
        raise min(refused, key=lambda bad: (bad.row, bad.place))


def _shown(cell: str) -> str:
    """A cell for messages; what was not UTF-8 as its bytes."""
    told = cell[:40].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return repr(told + ("…" if len(cell) > 40 else ""))
