"""Which of a CSV file's columns are read, and mistakes in what was asked for."""

from collections.abc import Mapping, Sequence

from coterie.compute.data.sources.csv.columns import FLOATS, INTEGERS, Chosen
from coterie.compute.data.sources.csv.rows import DELIMITERS
from coterie.errors import DataError, nearest

DTYPES = (*INTEGERS, *FLOATS, "str")


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


def _check_dtypes(name: str, columns: Chosen, dtypes: Mapping[str, str]) -> None:
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
