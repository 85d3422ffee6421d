"""Files of JSON objects, one a line, as sources."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, final

import numpy as np

from coterie.compute.data.checks import check_named
from coterie.compute.data.source import Column, Rows, Source
from coterie.compute.data.sources.lines import Lines, OpenedLines
from coterie.compute.ir import NDArray
from coterie.errors import DataError


class FirstRow:
    """The columns that a file's first row tells, found once in a process. Sent to another process it arrives empty."""

    def __init__(self) -> None:
        self.columns: Mapping[str, Column] | None = None

    def __reduce__(self) -> tuple[type["FirstRow"], tuple[()]]:
        return FirstRow, ()


@final
@dataclass(frozen=True, eq=False)
class JsonlSource(Source):
    """A file of JSON objects, one a line, plain or gzipped (``*.gz``).

    path: the file, in UTF-8. declared: the columns to read, by the names of the objects' members; None for what the
    first row has: texts, booleans, whole numbers (int64), other numbers (float64), and lists of them, which are arrays
    of that shape. Declare lists that differ in length, as ``Column("int64", (None,))``, numbers of which only some are
    whole, and other dtypes. ``null`` is NaN where the column holds floats, and refused elsewhere.

    Only where the lines are is kept in memory, and an unpacked file: each row is parsed when it is read. Raises
    DataError naming file, row (the first is 1) and column of what does not fit.
    """

    path: str | Path
    declared: Mapping[str, Column] | None = None
    _opened: OpenedLines = field(default_factory=OpenedLines, init=False, repr=False)
    _first: FirstRow = field(default_factory=FirstRow, init=False, repr=False)

    @property
    def columns(self) -> Mapping[str, Column]:
        """What was declared, or what the first row has."""
        check_named("JsonlSource", declared=self.declared)
        if self.declared is not None:
            return MappingProxyType(dict(self.declared))
        if self._first.columns is None:
            lines = self._lines()
            if not len(lines.starts):
                raise DataError(f"{self._name()}: there is no row.", hint="Give at least one.", code="data_empty")
            found = {name: _column_of(value) for name, value in self._parsed(lines, 0).items()}
            for name, column in found.items():
                if column is None:
                    raise self._refused(0, name, "is neither text nor numbers", "Declare the columns to read.")
            self._first.columns = MappingProxyType(cast(dict[str, Column], found))
        return self._first.columns

    def __len__(self) -> int:
        return len(self._lines().starts)

    def rows(self, indices: NDArray) -> Rows:
        """These rows, parsed."""
        lines, columns = self._lines(), self.columns
        numbers: list[int] = indices.tolist()
        objects = [self._parsed(lines, row) for row in numbers]
        found: dict[str, Any] = {}
        for name, column in columns.items():
            values = [self._value(row, name, column, item) for row, item in zip(numbers, objects, strict=True)]
            if column.fixed:
                stacked = np.empty((len(values), *cast(tuple[int, ...], column.shape)), column.dtype)
                for place, value in enumerate(values):
                    stacked[place] = value
                found[name] = stacked
            else:
                found[name] = values
        return found

    def _lines(self) -> Lines:
        return self._opened.of(Path(self.path))

    def _name(self) -> str:
        return Path(self.path).name

    def _parsed(self, lines: Lines, row: int) -> dict[str, object]:
        try:
            value: object = json.loads(lines.at(row))
        except (ValueError, RecursionError) as error:
            raise self._refused(
                row, None, "is no JSON", "Check that the file is whole, with one object a line."
            ) from error
        if not isinstance(value, dict):
            raise self._refused(row, None, "is no JSON object", 'Write rows as {"name": value, ...}.')
        return cast(dict[str, object], value)

    def _value(self, row: int, name: str, column: Column, item: Mapping[str, object]) -> Any:
        if name not in item:
            raise self._refused(row, name, "is missing", "Give every row every column.")
        value = item[name]
        if column.dtype == "str":
            if isinstance(value, str):
                return value
            raise self._refused(row, name, f"is {_shown(value)}, not text", "Mend the row.")
        wanted = _dtype(name, column)
        if value is None and wanted.kind == "f":
            return np.full(cast(tuple[int, ...], column.shape), np.nan, column.dtype)
        array = _array(value)
        if array is None or not _fits(array, wanted):
            hint = "Mend the row, or declare the column with a dtype that holds this value."
            raise self._refused(row, name, f"is {_shown(value)}, not {column.dtype}", hint)
        shape = column.shape
        if array.ndim != len(shape) or any(size not in (None, n) for size, n in zip(shape, array.shape, strict=True)):
            hint = 'Mend the row, or declare a length that differs as None: Column("int64", (None,)).'
            raise self._refused(row, name, f"has the shape {array.shape}, not {shape}", hint)
        with np.errstate(over="ignore"):
            return array.astype(wanted)

    def _refused(self, row: int, column: str | None, what: str, hint: str) -> DataError:
        where = f"row {row + 1}" + (f", column {column!r}" if column is not None else "")
        code = "data_cell" if column is not None else "data_unreadable"
        return DataError(f"{self._name()}: {where} {what}.", hint=hint, code=code, row=row + 1, column=column)


def _dtype(name: str, column: Column) -> np.dtype[Any]:
    try:
        dtype = np.dtype(column.dtype)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind in "biuf":
        return dtype
    raise DataError(
        f"Column {name!r} is declared as {column.dtype!r}, which JSON has no values of.",
        hint="Declare str, bool, or a dtype of numbers.",
        code="data_dtype",
        column=name,
    )


def _array(value: object) -> NDArray | None:
    """Numbers or booleans, or nested lists of equal lengths of them, as an array; None for anything else."""
    if not isinstance(value, list | int | float):
        return None
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        return None
    if array.dtype.kind not in "biuf" or _mixes_booleans(cast(object, value)):
        return None
    return array.astype(np.float64) if not array.size else array


def _mixes_booleans(value: object) -> bool:
    """Whether booleans stand among numbers: NumPy would take them for 0 and 1."""
    kinds: set[bool] = set()
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, list):
            rest += cast(list[object], item)
        else:
            kinds.add(isinstance(item, bool))
    return len(kinds) > 1


def _fits(array: NDArray, wanted: np.dtype[Any]) -> bool:
    """Whether the values can be of the wanted dtype: in range, whole where it is, booleans only as booleans."""
    if not array.size:
        return True
    if (array.dtype.kind == "b") != (wanted.kind == "b"):
        return False
    if wanted.kind in "iu":
        limits = np.iinfo(wanted)
        return array.dtype.kind in "iu" and int(array.min()) >= limits.min and int(array.max()) <= limits.max
    with np.errstate(over="ignore"):
        return bool((np.isfinite(array.astype(wanted)) | ~np.isfinite(array)).all())


def _column_of(value: object) -> Column | None:
    if isinstance(value, str):
        return Column("str")
    array = _array(value)
    return None if array is None else Column(array.dtype.name, array.shape)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:40] + "…"
