"""CSV files as sources."""

import gzip
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, cast, final

import numpy as np

from coterie.compute.data.checks import check_named
from coterie.compute.data.sources.arrays import ArraySource, Values
from coterie.compute.data.sources.csv.cells import BadText, Cells, cells
from coterie.compute.data.sources.csv.lines import blocks, line_ends
from coterie.compute.data.sources.csv.planning import choose, otherwise_separated, plan, separator
from coterie.compute.data.sources.csv.regular import Regular, learn
from coterie.compute.data.sources.csv.table import Part, Table
from coterie.compute.data.sources.loaded import LoadedSource
from coterie.compute.ir import NDArray
from coterie.errors import DataError

UTF8_MARK, UTF16_MARKS = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")
BLOCKS_AHEAD = 4
"""Blocks in memory for each thread that reads them."""
KEPT_BYTES = 24 << 20


@final
@dataclass(frozen=True, eq=False)
class CsvSource(LoadedSource):
    """A CSV file, plain or gzipped (``*.gz``), whose first line names its columns.

    path: the file, in UTF-8. select: what to read: name → a column of the file, or several of them as one vector a row;
    None for every column by its own name. dtypes: by those names, one of int8 to int64, uint8 to uint32, float16 to
    float64, and ``str``. missing: cells that stand for no number, letter for letter, such as "?" or "-999". header: the
    names of the file's columns where the file has no line of names. delimiter: one character; None for the comma, the
    semicolon, the tab or the bar, whichever the first line is written with. threads: how many read
    blocks of lines, beside the one that reads the file; one does all of it by itself.

    A column without a dtype holds numbers if its first cell that is neither empty nor missing is one: int64 if all
    cells are whole numbers, else float64. Otherwise it holds text. Numbers are the nearest float64 (or int64) to what
    the file says, as Python's ``float`` reads it. Empty cells are NaN, and refused where a dtype of whole numbers is
    given. Quotes are those of RFC 4180; empty lines are skipped.

    The file is read whole on first use, and stays in memory in columns. Raises DataError naming the file, and the row
    (the first after the header is 1) and column of the first cell that does not fit: rows of another width, text among
    numbers, a quote that never closes, a carriage return within a row, a file that ends within a row.
    """

    path: str | Path
    select: Mapping[str, str | Sequence[str]] | None = None
    dtypes: Mapping[str, str] | None = None
    missing: Sequence[str] = ()
    header: Sequence[str] | None = None
    delimiter: str | None = None
    threads: int = 2

    def load(self) -> ArraySource:
        """Parse the file. Raises DataError; ArgumentTypeError for settings that are no mappings."""
        path = Path(self.path)
        if self.delimiter is not None:
            _check_delimiter(self.delimiter)
        check_named("CsvSource", select=self.select, dtypes=self.dtypes)
        if not path.is_file():
            raise DataError(f"{path}: there is no such file.", hint="Check the path.", code="data_missing")
        try:
            with _opened(path) as file:
                return self._parsed(path.name, file)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{path.name} cannot be read: {str(error).rstrip('.')}.",
                hint="Check that the file is whole and of that format.",
                code="data_unreadable",
            ) from error

    def _parsed(self, name: str, file: IO[bytes]) -> ArraySource:
        rows = 0
        _keep_memory()
        try:
            table, regular, pending, delimiter = self._begun(name, blocks(file))
            parts: list[list[Part]] = [[] for _ in table.wanted]

            def read(text: bytes) -> list[Part]:
                nonlocal regular
                # Another thread may give it up meanwhile.
                fast = regular
                found = None if fast is None else fast.read(text)
                if found is None:
                    # What comes after it is hardly any better.
                    regular = None
                    found = table.read(_cells(text, table.header, delimiter))
                return found

            for block in _in_order(read, pending, self.threads):
                for collected, part in zip(parts, block, strict=True):
                    collected.append(part)
                rows += len(block[0]) if block else 0
            if not rows:
                raise DataError(f"{name}: there are no rows.", hint="Give at least one.", code="data_empty")
        except BadText as bad:
            raise _refusal(name, bad, rows + bad.row + 1) from bad
        return ArraySource({wanted.name: _joined(part) for wanted, part in zip(table.wanted, parts, strict=True)})

    def _begun(self, name: str, text: Iterator[bytes]) -> tuple[Table, Regular | None, Iterator[bytes], int]:
        """How to read the file, how to read it fast, all its text after the line of names, and what separates cells."""
        first = next(text, b"")
        if first.startswith(UTF16_MARKS):
            raise _undecodable(name, "it is in UTF-16")
        first = first.removeprefix(UTF8_MARK)
        if b"\n" not in first:
            # All of a file whose lines end in carriage returns alone, as spreadsheets once wrote them.
            parts = first.split(b'"')
            parts[::2] = [outside.replace(b"\r", b"\n") for outside in parts[::2]]
            first = b'"'.join(parts)
        header = self.header
        delimiter = ord(self.delimiter or separator(first, None if header is None else len(header)))
        if header is None:
            header, first = _names(name, first, delimiter)
        while not first.strip(b"\r\n"):
            # A block may hold the line of names alone, or empty lines.
            following = next(text, None)
            if following is None:
                break
            first = following
        chosen = choose(name, tuple(header), self.select, self.dtypes or {})
        sample = _cells(first, tuple(header), delimiter)
        table = plan(tuple(header), sample, chosen, self.dtypes or {}, self.missing)
        return table, learn(table, sample, delimiter), chain([first], text), delimiter


def _cells(text: bytes, header: tuple[str, ...], delimiter: int) -> Cells:
    try:
        return cells(text, delimiter, len(header))
    except BadText as bad:
        bad.hint = otherwise_separated(header) or bad.hint
        if not text.endswith(b"\n") and bad.row + 1 == _lines(text):
            bad.hint = "The file ends within this row: it may have been cut off."
        raise


def _keep_memory() -> None:
    """Let the memory of one block's arrays serve the next block.

    glibc hands freed memory back to the system once it is twice the largest array ever freed, and then each block has
    every page given to it, and cleared, anew: more work than parsing. So a large array is freed first, of which no page
    was touched. The process keeps up to twice KEPT_BYTES for its next arrays.
    """
    np.empty(KEPT_BYTES, np.uint8)


def _check_delimiter(delimiter: str) -> None:
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter.isalnum() or delimiter in '"\r\n+-._':
        raise DataError(
            f"{delimiter!r} cannot separate cells.", hint="Use one character such as , ; or a tab.", code="data_invalid"
        )


def _opened(path: Path) -> IO[bytes]:
    if path.name.lower().endswith(".gz"):
        return cast(IO[bytes], gzip.open(path, "rb"))
    return path.open("rb")


def _names(name: str, text: bytes, delimiter: int) -> tuple[tuple[str, ...], bytes]:
    """The names in the first line, and the text after it."""
    ends = line_ends(text)
    end = int(ends[0]) if ends.size else len(text)
    try:
        line = cells(text[:end], delimiter)
        names = [line.at(0, place).decode("utf-8").strip() for place in range(line.starts.shape[1])]
    except BadText as bad:
        raise DataError(f"{name}: the first line {bad.what}.", hint=bad.hint, code="data_shape") from bad
    except UnicodeDecodeError as error:
        raise _undecodable(name, "the first line is not UTF-8") from error
    return tuple(text.replace('""', '"') for text in names), text[end:]


def _undecodable(name: str, why: str) -> DataError:
    return DataError(f"{name} cannot be read: {why}.", hint="Save it as UTF-8.", code="data_unreadable")


def _lines(text: bytes) -> int:
    return sum(line.strip(b"\r") != b"" for line in text.split(b"\n"))


def _in_order(work: Callable[[bytes], list[Part]], items: Iterator[bytes], threads: int) -> Iterator[list[Part]]:
    """``map``, by other threads, with few items under way."""
    if threads < 2:
        yield from map(work, items)
        return
    under_way: deque[Future[list[Part]]] = deque()
    unreadable: BadText | None = None
    with ThreadPoolExecutor(threads, "coterie-csv") as pool:
        try:
            while True:
                try:
                    item = next(items, None)
                except BadText as bad:
                    # What comes before it is due first: its rows are counted.
                    unreadable, item = bad, None
                if item is None:
                    break
                under_way.append(pool.submit(work, item))
                if len(under_way) >= threads * BLOCKS_AHEAD:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
    if unreadable is not None:
        raise unreadable


def _joined(parts: Sequence[Part]) -> Values:
    """One column of all blocks. Whole numbers become float64 where another block has other numbers."""
    if isinstance(parts[0], list):
        # Categories come again and again; one object for each saves memory.
        seen: dict[str, str] = {}
        return [seen.setdefault(value, value) for part in parts for value in part]
    return np.concatenate(cast(Sequence[NDArray], parts))


def _refusal(name: str, bad: BadText, row: int) -> DataError:
    where = f"{name}: row {row}" + (f", column {bad.column!r}" if bad.column is not None else "")
    code = "data_cell" if bad.column is not None else "data_shape"
    return DataError(f"{where} {bad.what}.", hint=bad.hint, code=code, row=row, column=bad.column)
