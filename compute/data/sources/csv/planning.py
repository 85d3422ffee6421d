"""Which cells a CSV file's columns are made of, from its first line, its first rows, and what was asked for."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from coterie.compute.data.sources.csv.cells import BLANKS, Cells
from coterie.compute.data.sources.csv.numbers import NUMBER
from coterie.compute.data.sources.csv.table import FLOATS, INTEGERS, Numeric, Table, Text
from coterie.errors import DataError, nearest

DTYPES = (*INTEGERS, *FLOATS, "str")
DELIMITERS = (",", ";", "\t", "|")


Chosen: TypeAlias = Mapping[str, str | Sequence[str]]
"""The columns to make: name → a column of the file, or several of them as one vector a row."""


def choose(name: str, header: tuple[str, ...], columns: Chosen | None, dtypes: Mapping[str, str]) -> Chosen:
    """The columns to make of a file with this first line; all by their own names for None.

    name: of the file, for messages. Raises DataError for columns that are not there, or are there twice, and for dtypes
    that are not known.
    """
    chosen = dict(columns) if columns is not None else {name: name for name in header}
    if header and not chosen:
        raise DataError(f"No column of {name} is chosen.", hint="Leave select= out for all.", code="data_missing")
    for column, asked in chosen.items():
        if not asked and not isinstance(asked, str):
            raise DataError(f"Column {column!r} joins no column of {name}.", code="data_missing", column=column)
    _check_dtypes(name, chosen, dtypes)
    _check_columns(name, header, [part for asked in chosen.values() for part in _parts(asked)])
    return chosen


def plan(
    header: tuple[str, ...], sample: Cells, chosen: Chosen, dtypes: Mapping[str, str], missing: str | Sequence[str]
) -> Table:
    """How to read a file whose first rows are ``sample``.

    A column whose dtype is not given holds numbers if its first cell that is neither empty nor missing is one, and text
    otherwise.
    """
    gaps = frozenset(text.encode() for text in _parts(missing)) | {b""}
    texts: dict[str, int] = {}
    numeric: dict[str, tuple[int, ...]] = {}
    for column, asked in chosen.items():
        places = tuple(header.index(part) for part in _parts(asked))
        first = _first(sample, places[0], gaps)
        is_text = isinstance(asked, str) and column not in dtypes and first and not NUMBER.fullmatch(first)
        if is_text or dtypes.get(column) == "str":
            texts[column] = places[0]
        else:
            numeric[column] = places
    # In the order of the file, so that a file of numbers is read without rearranging its cells.
    read = sorted({place for places in numeric.values() for place in places})
    wanted = tuple(
        Text(column, texts[column])
        if column in texts
        else Numeric(
            column, tuple(map(read.index, numeric[column])), not isinstance(chosen[column], str), dtypes.get(column)
        )
        for column in chosen
    )
    return Table(header, wanted, tuple(read), gaps)


def _check_dtypes(name: str, columns: Mapping[str, str | Sequence[str]], dtypes: Mapping[str, str]) -> None:
    for column, dtype in dtypes.items():
        if column not in columns:
            raise DataError(
                f"A dtype is given for column {column!r}, which is not read from {name}.",
                hint=f"The columns are {', '.join([*columns][:20])}.",
                code="data_missing",
                column=column,
            )
        vector = not isinstance(columns[column], str)
        if dtype not in DTYPES or (vector and dtype == "str"):
            raise DataError(
                f"Column {column!r} of {name} cannot be read as {dtype!r}.",
                hint=f"Use one of {', '.join(DTYPES)}; several columns joined hold numbers.",
                code="data_dtype",
                column=column,
            )


def separator(text: bytes, width: int | None) -> str:
    """What separates the cells of a file: the first of DELIMITERS that its first line holds outside of quotes, or that
    makes as many cells as there are columns. text: the file from its beginning. width: its columns; None where the
    first line says them.
    """
    outside = b"".join(text.lstrip(b"\r\n").split(b'"')[::2])
    line = outside[: min((at for at in (outside.find(b"\n"), outside.find(b"\r")) if at >= 0), default=len(outside))]
    counts = {mark: line.count(mark.encode()) for mark in DELIMITERS}
    fitting = [mark for mark, count in counts.items() if (count > 0 if width is None else count == width - 1)]
    return next(iter(fitting), DELIMITERS[0])


def otherwise_separated(header: tuple[str, ...]) -> str:
    """A word on the likely reason where a first line has one cell; empty where that is not the reason."""
    found = next((mark for mark in DELIMITERS if len(header) == 1 and mark in header[0]), None)
    return f"The first line's cells seem to be separated by {found!r}, not by the delimiter." if found else ""


def _parts(asked: str | Sequence[str]) -> Sequence[str]:
    return [asked] if isinstance(asked, str) else asked


def _check_columns(name: str, header: tuple[str, ...], wanted: Sequence[str]) -> None:
    missing = [column for column in dict.fromkeys(wanted) if column not in header]
    if missing:
        more = f" and {len(missing) - 1} more are" if missing[1:] else " is"
        raise DataError(
            f"{name}: column {missing[0]!r}{more} missing; found {', '.join(header[:20]) or 'an empty first line'}.",
            hint=otherwise_separated(header) or _as_named(missing[0], header),
            code="data_missing",
            column=missing[0],
        )
    twice = [column for column in wanted if header.count(column) > 1]
    if twice:
        raise DataError(
            f"{name}: the first line names column {twice[0]!r} twice.", code="data_surplus", column=twice[0]
        )


def _as_named(column: str, header: tuple[str, ...]) -> str:
    """What to do about a column that the first line does not name."""
    near = nearest(column, header)
    meant = f"If {near!r} is meant, rename it" if near else "Name the column"
    return f"{meant} in the file's first line; a file that names no columns is told them by CsvSource(header=...)."


def _first(sample: Cells, place: int, gaps: frozenset[bytes]) -> bytes:
    """The first cell that holds something; empty if none does."""
    filled = np.flatnonzero(sample.ends[:, place] > sample.starts[:, place])
    return next((cell for row in filled.tolist() if (cell := sample.at(row, place)).strip(BLANKS) not in gaps), b"")
