"""Tables in files, as a party of a session reads them: texts as they are written (ids), and numbers (NaN where there is
none). No error says what is in a cell.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from coterie.compute.data.sources.csv.source import CsvSource
from coterie.compute.data.sources.npz import NpzSource, opened_npz
from coterie.compute.ir import NDArray
from coterie.errors import ConfigurationError, DataError

TableColumns: TypeAlias = Mapping[str, Sequence[Any] | NDArray]


@dataclass(frozen=True)
class TableFormat:
    """How one kind of file is read.

    names: of its columns, in their order. texts, numbers: columns by name, as texts and as numbers.
    """

    names: Callable[[Path], tuple[str, ...]]
    texts: Callable[[Path, Sequence[str]], TableColumns]
    numbers: Callable[[Path, Sequence[str]], TableColumns]


def table_names(path: str | Path) -> tuple[str, ...]:
    """The names of a table's columns. Raises DataError, ConfigurationError (``extra_missing``)."""
    return format_of(path).names(Path(path))


def read_texts(path: str | Path, names: Sequence[str]) -> TableColumns:
    """Columns as texts: those of a CSV file as they are written, so that 007 is not 7; in other files a column of whole
    numbers stays one. Raises DataError, ConfigurationError (``extra_missing``).
    """
    return format_of(path).texts(Path(path), names) if names else {}


def read_numbers(path: str | Path, names: Sequence[str]) -> TableColumns:
    """Columns as numbers, NaN where a cell is empty. In files that say what a column holds, one of text stays text.

    Raises DataError naming column and row, ConfigurationError (``extra_missing``).
    """
    return format_of(path).numbers(Path(path), names) if names else {}


def format_of(path: str | Path) -> TableFormat:
    """How a file is read. Raises DataError (``data_unknown_format``)."""
    name = Path(path).name.lower()
    found = next((kind for ending, kind in FORMATS.items() if name.endswith(ending)), None)
    if found is None:
        raise DataError(
            f"{path}: the ending {Path(path).suffix!r} is not known.",
            hint=f"Give a file {', '.join(FORMATS)}; or in Python columns by name, or a DataFrame.",
            code="data_unknown_format",
        )
    return found


def _csv_names(path: Path) -> tuple[str, ...]:
    return CsvSource(path).names()


def _csv_texts(path: Path, names: Sequence[str]) -> TableColumns:
    source = CsvSource(path, {name: name for name in names}, dict.fromkeys(names, "str"))
    return source.rows(np.arange(len(source)))


def _csv_numbers(path: Path, names: Sequence[str]) -> TableColumns:
    source = CsvSource(path, {name: name for name in names}, dict.fromkeys(names, "float64"))
    try:
        return source.rows(np.arange(len(source)))
    except DataError as error:
        if error.reason != "data_cell":
            raise
        column, row = error.details.get("column"), error.details.get("row")
    # Not with what is in the cell, as the source tells it, and not as its cause.
    raise DataError(
        f"{path.name}: column {column!r} holds no number in row {row}.",
        hint="Write numbers, and nothing where there is none; give categories a number each, or leave the column out.",
        code="data_cell",
        column=column,
        row=row,
    )


def _npz_names(path: Path) -> tuple[str, ...]:
    with opened_npz(path) as archive:
        return (*archive,)


def _npz(path: Path, names: Sequence[str]) -> TableColumns:
    source = NpzSource(path, {name: name for name in names})
    return source.rows(np.arange(len(source)))


def _parquet_names(path: Path) -> tuple[str, ...]:
    return _of_parquet(path, lambda parquet: tuple(parquet.read_schema(path).names))


def _parquet_numbers(path: Path, names: Sequence[str]) -> TableColumns:
    table = _parquet_table(path, names)
    # Whole numbers with gaps become floats with NaN; texts and truth values with gaps become objects.
    return {name: np.asarray(table.column(name).to_numpy()) for name in names}


def _parquet_texts(path: Path, names: Sequence[str]) -> TableColumns:
    table = _parquet_table(path, names)
    return {name: table.column(name).to_pylist() for name in names}


def _parquet_table(path: Path, names: Sequence[str]) -> Any:
    known = _parquet_names(path)
    absent = next((name for name in names if name not in known), None)
    if absent is not None:
        raise DataError(
            f"{path.name}: column {absent!r} is missing.",
            hint="Correct the name.",
            code="data_missing",
            column=absent,
        )
    return _of_parquet(path, lambda parquet: parquet.read_table(path, columns=[*names]))


def _of_parquet(path: Path, read: Callable[[Any], Any]) -> Any:
    if not path.is_file():
        raise DataError(f"{path}: there is no such file.", hint="Check the path.", code="data_missing")
    try:
        # It has no types.
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigurationError(
            "Parquet files need pyarrow, which the base install does not include.",
            hint='Run: pip install "coterie[parquet]"',
            code="extra_missing",
        ) from error
    try:
        return read(parquet)
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise DataError(
            f"{path.name} cannot be read as Parquet.",
            hint="Check that the file is whole and of that format.",
            code="data_unreadable",
        ) from error


_CSV: Final = TableFormat(_csv_names, _csv_texts, _csv_numbers)
FORMATS: Final[Mapping[str, TableFormat]] = {
    ".csv": _CSV,
    ".csv.gz": _CSV,
    ".npz": TableFormat(_npz_names, _npz, _npz),
    ".parquet": TableFormat(_parquet_names, _parquet_texts, _parquet_numbers),
}
"""By the ending of a file's name."""
