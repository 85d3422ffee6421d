"""Which cells a CSV file's columns are made of, from its first line, its first rows, and what was asked for."""

from collections.abc import Mapping, Sequence

import numpy as np

from coterie.compute.data.sources.csv.cells import Cells
from coterie.compute.data.sources.csv.numbers import NUMBER
from coterie.compute.data.sources.csv.table import FLOATS, INTEGERS, Numeric, Table, Text
from coterie.errors import DataError

DTYPES = (*INTEGERS, *FLOATS, "str")


def plan(
    name: str,
    header: tuple[str, ...],
    sample: Cells,
    columns: Mapping[str, str | Sequence[str]] | None,
    dtypes: Mapping[str, str],
    missing: Sequence[str],
) -> Table:
    """How to read a file whose first rows are ``sample``.

    A column whose dtype is not given holds numbers if its first cell that is neither empty nor missing is one, and text
    otherwise. name: of the file, for messages. Raises DataError for columns that are not there, or are there twice, and
    for dtypes that are not known.
    """
    chosen: dict[str, str | Sequence[str]] = dict(columns) if columns is not None else {name: name for name in header}
    _check_dtypes(name, chosen, dtypes)
    gaps = frozenset(text.encode() for text in missing) | {b""}
    texts: dict[str, int] = {}
    numeric: dict[str, tuple[int, ...]] = {}
    for column, asked in chosen.items():
        places = tuple(_place(name, header, part) for part in ([asked] if isinstance(asked, str) else asked))
        if not places:
            raise DataError(f"Column {column!r} joins no column of {name}.", code="data_missing", column=column)
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


def _place(name: str, header: tuple[str, ...], column: str) -> int:
    count = header.count(column)
    if count == 1:
        return header.index(column)
    if count > 1:
        raise DataError(f"{name}: the first line names column {column!r} twice.", code="data_surplus", column=column)
    raise DataError(
        f"{name}: column {column!r} is missing; found {', '.join(header[:20]) or 'an empty first line'}.",
        hint="The first line must name the columns; for a file without such a line give header=.",
        code="data_missing",
        column=column,
    )


def _first(sample: Cells, place: int, gaps: frozenset[bytes]) -> bytes:
    """The first cell that holds something; empty if none does."""
    filled = np.flatnonzero(sample.ends[:, place] > sample.starts[:, place])
    return next((cell for row in filled.tolist() if (cell := sample.at(row, place)).strip() not in gaps), b"")
