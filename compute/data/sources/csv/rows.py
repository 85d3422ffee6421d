"""Rows of cells, as the csv module reads them, and what it lets pass that is most likely a mistake."""

import csv
import re
from collections.abc import Iterator, Sequence
from typing import IO, Literal

DELIMITERS = (",", ";", "\t", "|")
LONGEST_ROW = 1 << 26
"""Characters."""

_RETURN = "has a carriage return in its middle, without a newline after it", "End all lines alike; or quote that cell."
_TOO_LONG = "Look for a quote that is opened and never closed."
_TOLD = {
    "unexpected end of data": ("opens a quote that is never closed", "Close it; the file may have been cut off."),
    "new-line character": _RETURN,
    "field larger": ("has a cell of more characters than csv.field_size_limit allows", _TOO_LONG),
    "": ("has a quote in the middle of a cell", 'Quote the cell and double its quotes: "a 5"" pipe".'),
}
"""What the csv module says, in part, and what a user is told instead."""


class BadText(Exception):
    """A row or a cell that cannot be read.

    what: the rest of a sentence that begins with row and column. hint: what to do. row: its number within the rows at
    hand, from 0. place: within its row, -1 where the whole row is meant.
    """

    def __init__(self, what: str, hint: str, row: int = 0, place: int = -1) -> None:
        super().__init__(what, hint, row, place)
        self.what, self.hint, self.row, self.place = what, hint, row, place


def newline_of(head: bytes) -> Literal["", "\n"]:
    """What ends lines, as ``open`` is told it: newlines, after a carriage return or not; or carriage returns alone, as
    spreadsheets once wrote them. head: the file's beginning.
    """
    return "" if b"\r" in head and b"\n" not in head else "\n"


def separator(head: bytes, width: int | None) -> str:
    """What separates cells: the first of DELIMITERS that the first line holds outside of quotes, or that makes as many
    cells as there are columns. width: the columns; None where the first line says them.
    """
    outside = b"".join(head.lstrip(b"\r\n").split(b'"')[::2])
    line = re.split(rb"[\r\n]", outside, maxsplit=1)[0]
    counts = {mark: line.count(mark.encode()) for mark in DELIMITERS}
    fitting = [mark for mark, count in counts.items() if (count > 0 if width is None else count == width - 1)]
    return next(iter(fitting), DELIMITERS[0])


def is_utf8(text: str) -> bool:
    """Whether text that was decoded with ``surrogateescape`` stood for itself."""
    return text.isascii() or not any("\udc80" <= character <= "\udcff" for character in text)


class Rows:
    """The rows of a file, which raise BadText for one that cannot be read.

    file: opened as `newline_of` says. delimiter: one character. ``text`` is the row that was read last, as it stands in
    the file.
    """

    def __init__(self, file: IO[str], delimiter: str) -> None:
        self.text = ""
        self._file = file
        cell = f'(?:"[^"]*(?:""[^"]*)*"|[^"{re.escape(delimiter)}\r\n]*)'
        self._well_quoted = re.compile(f"{cell}(?:{re.escape(delimiter)}{cell})*\r?\n?")
        self._reader = csv.reader(self._lines(), delimiter=delimiter, strict=True)

    def next(self) -> list[str]:
        """The next row; empty for an empty line, and at the end of the file, where ``text`` is empty too."""
        self.text, end = "", list[str]()
        try:
            row = next(self._reader, end)
        except csv.Error as error:
            raise BadText(*next(told for part, told in _TOLD.items() if part in str(error))) from error
        if self.text.removesuffix("\n").endswith("\r\r"):
            raise BadText(*_RETURN)
        return row

    def filled(self) -> Iterator[list[str]]:
        """All rows from here on but for empty ones."""
        row = self.next()
        while self.text:
            if row:
                yield row
            row = self.next()

    def check_quotes(self, row: Sequence[str]) -> None:
        """Refuse a quote within a cell that is not quoted, which the csv module takes for a character like others."""
        if '"' in self.text and any('"' in cell for cell in row) and not self._well_quoted.fullmatch(self.text):
            raise BadText(*_TOLD[""])

    def _lines(self) -> Iterator[str]:
        while line := self._file.readline(LONGEST_ROW + 1):
            self.text += line
            if len(self.text) > LONGEST_ROW:
                raise BadText(f"is longer than {LONGEST_ROW} bytes", _TOO_LONG)
            yield line
