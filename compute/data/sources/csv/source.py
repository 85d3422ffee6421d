"""CSV files as sources."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar, cast, final

from coterie.compute.data.checks import check_named
from coterie.compute.data.sources.arrays import ArraySource
from coterie.compute.data.sources.csv.choosing import choose, otherwise_separated
from coterie.compute.data.sources.csv.columns import Column, planned, raise_first
from coterie.compute.data.sources.csv.rows import BadText, Rows, is_utf8, newline_of, separator
from coterie.compute.data.sources.loaded import LoadedSource
from coterie.errors import DataError

Parsed = TypeVar("Parsed")

HEAD_BYTES = 1 << 20
"""In which the first line is looked for."""
BLOCK = 1 << 18
"""About how many characters are held as Python's strings at once."""
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@final
@dataclass(frozen=True, eq=False)
class CsvSource(LoadedSource):
    """A CSV file, plain or gzipped (``*.gz``), whose first line names its columns.

    path: the file, in UTF-8. select: what to read: name → a column of the file, or several of them as one vector a row;
    None for every column by its own name. dtypes: by those names, one of int8 to int64, uint8 to uint32, float16 to
    float64, and ``str``. missing: cells that stand for no number, letter for letter, such as "?" or "-999". header: the
    names of the file's columns where the file has no line of names. delimiter: one character; None for the comma, the
    semicolon, the tab or the bar, whichever the first line is written with.

    A column without a dtype holds numbers if its first cell that is neither empty nor missing is one: int64 if all
    cells are whole numbers, else float64. Otherwise it holds text. Numbers are the nearest float64 (or int64) to what
    the file says, as Python's ``float`` reads it. Empty cells are NaN, and refused where a dtype of whole numbers is
    given. Quotes are those of RFC 4180; empty lines are skipped.

    The file is read on first use, a block of rows at a time, and stays in memory in columns. Raises DataError naming
    the file, and the row (the first after the header is 1) and column of the first cell that does not fit: rows of
    another width, text among numbers, a quote that never closes, a carriage return within a row, a file that ends
    within a row.
    """

    path: str | Path
    select: Mapping[str, str | Sequence[str]] | None = None
    dtypes: Mapping[str, str] | None = None
    missing: Sequence[str] = ()
    header: Sequence[str] | None = None
    delimiter: str | None = None

    def load(self) -> ArraySource:
        """Parse the file. Raises DataError; ArgumentTypeError for settings that are no mappings."""
        return self._read(self._parsed)

    def names(self) -> tuple[str, ...]:
        """The names of all columns of the file, in their order; its rows are not looked at. Raises DataError."""
        return self._read(self._named)

    def _read(self, parse: Callable[[str, bytes, IO[str]], Parsed]) -> Parsed:
        path = Path(self.path)
        if self.delimiter is not None:
            _check_delimiter(self.delimiter)
        check_named("CsvSource", select=self.select, dtypes=self.dtypes)
        if not path.is_file():
            raise DataError(f"{path}: there is no such file.", hint="Check the path.", code="data_missing")
        try:
            with _opened(path) as file:
                head = file.read(HEAD_BYTES)
                file.seek(0)
                with io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline_of(head)) as text:
                    return parse(path.name, head, text)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{path.name} cannot be read: {str(error).rstrip('.')}.",
                hint="Check that the file is whole and of that format.",
                code="data_unreadable",
            ) from error

    def _named(self, name: str, head: bytes, text: IO[str]) -> tuple[str, ...]:
        return self._begun(name, head, text)[1]

    def _begun(self, name: str, head: bytes, text: IO[str]) -> tuple[Rows, tuple[str, ...]]:
        """The rows, of which the first line is read, and the names of the columns."""
        if head.startswith(UTF16_MARKS):
            raise _undecodable(name, "it is in UTF-16")
        rows = Rows(text, self.delimiter or separator(head, None if self.header is None else len(self.header)))
        return rows, _names(name, rows) if self.header is None else tuple(self.header)

    def _parsed(self, name: str, head: bytes, text: IO[str]) -> ArraySource:
        rows, header = self._begun(name, head, text)
        dtypes = self.dtypes or {}
        chosen = choose(name, header, self.select, dtypes)
        columns: dict[str, Column] = {}
        count = 0
        for block in _blocks(name, rows, header):
            cells = [*zip(*block, strict=True)]
            columns = columns or planned(header, cells, chosen, dtypes, self.missing)
            _add(name, header, columns, cells, count)
            count += len(block)
        if not count:
            raise DataError(f"{name}: there are no rows.", hint="Give at least one.", code="data_empty")
        return ArraySource({column: found.joined() for column, found in columns.items()})


def _blocks(name: str, rows: Rows, header: tuple[str, ...]) -> Iterator[list[list[str]]]:
    """The rows some at a time. Those before a row that cannot be read come first: a cell of theirs may be wrong."""
    block: list[list[str]] = []
    count = size = 0
    refused: BadText | None = None
    try:
        for row in rows.filled():
            if len(row) != len(header):
                raise _of_other_width(row, header, rows.text)
            rows.check_quotes(row)
            block.append(row)
            count += 1
            size += len(rows.text)
            if size >= BLOCK:
                yield block
                block, size = [], 0
    except BadText as bad:
        refused = bad
    if block:
        yield block
    if refused is not None:
        raise _refusal(name, refused, count + 1, None)


def _add(
    name: str, header: tuple[str, ...], columns: Mapping[str, Column], cells: Sequence[Sequence[str]], before: int
) -> None:
    """Take a block of rows into all columns. Raises DataError for the first cell that does not fit."""
    refused: list[BadText] = []
    for column in columns.values():
        try:
            column.add(cells)
        except BadText as bad:
            refused.append(bad)
    try:
        raise_first(refused)
    except BadText as bad:
        raise _refusal(name, bad, before + bad.row + 1, header[bad.place]) from bad


def _names(name: str, rows: Rows) -> tuple[str, ...]:
    """The names in the first line."""
    try:
        names = rows.next()
        rows.check_quotes(names)
    except BadText as bad:
        raise DataError(f"{name}: the first line {bad.what}.", hint=bad.hint, code="data_shape") from bad
    if not all(map(is_utf8, names)):
        raise _undecodable(name, "the first line is not UTF-8")
    return tuple(cell.strip() for cell in names)


def _of_other_width(row: Sequence[str], header: tuple[str, ...], text: str) -> BadText:
    hint = otherwise_separated(header) or "Quote cells that contain the delimiter."
    if not text.endswith(("\n", "\r")):
        hint = "The file ends within this row: it may have been cut off."
    return BadText(f"has {len(row)} cells; the first line has {len(header)}", hint)


def _refusal(name: str, bad: BadText, row: int, column: str | None) -> DataError:
    where = f"{name}: row {row}" + (f", column {column!r}" if column is not None else "")
    code = "data_shape" if column is None else "data_cell"
    return DataError(f"{where} {bad.what}.", hint=bad.hint, code=code, row=row, column=column)


def _undecodable(name: str, why: str) -> DataError:
    return DataError(f"{name} cannot be read: {why}.", hint="Save it as UTF-8.", code="data_unreadable")


def _check_delimiter(delimiter: str) -> None:
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter.isalnum() or delimiter in '"\r\n+-._':
        raise DataError(
            f"{delimiter!r} cannot separate cells.", hint="Use one character such as , ; or a tab.", code="data_invalid"
        )


def _opened(path: Path) -> IO[bytes]:
    if path.name.lower().endswith(".gz"):
        return cast(IO[bytes], gzip.open(path, "rb"))
    return path.open("rb")
