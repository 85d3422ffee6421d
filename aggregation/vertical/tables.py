"""Rows of one party as columns of numbers, checked: nothing that is no number, and no infinity. NaN says that a row
lacks a number.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from coterie.compute.data.sources.table_files import read_numbers, table_names
from coterie.errors import ArgumentTypeError, DataError, nearest
from coterie.protocol.frames import Frame, as_columns

TableSource: TypeAlias = "str | Path | Mapping[str, Any] | Frame"
"""A file (`coterie.compute.data.sources.table_files.FORMATS`), arrays by name, or a DataFrame."""
RowNumbers: TypeAlias = NDArray[np.float64]
"""A number a row, ``[rows]``."""
TableLabelKind = Literal["binary", "number", "count"]
_MOST_LABEL: Final = 2.0**31
"""So that differences of labels fit into the whole numbers that are encrypted."""
_LABELS: Final[Mapping[TableLabelKind, tuple[Callable[[NDArray[np.float64]], NDArray[np.bool_]], str]]] = {
    "binary": (lambda labels: np.isin(labels, (0.0, 1.0)), "is not 0 or 1"),
    "number": (lambda labels: np.abs(labels) < _MOST_LABEL, "is missing, or not below 2**31"),
    "count": (lambda labels: (labels >= 0) & (labels == np.rint(labels)), "is not a whole number from 0"),
}
"""Of each kind of label which are good, and what is said of one that is not."""


def read_columns(source: TableSource, names: Sequence[str], told: str) -> dict[str, NDArray[np.float64]]:
    """The columns of these names, and no other, ``[rows]`` each.

    told: whose rows they are, for messages.
    Raises DataError (``data_missing``, ``data_shape``, ``data_dtype``, ``data_cell``, ``data_lengths``,
    ``data_empty``), naming the column; none of it holds a value. ArgumentTypeError for what is no table.
    """
    given = _given(source, names, told)
    absent = [name for name in names if name not in given]
    if absent:
        near = nearest(absent[0], given)
        raise DataError(
            f"{told}: column {absent[0]!r} is missing.",
            hint=(f"Did you mean {near}? " if near else "") + f"There are {', '.join(sorted(given)[:20]) or 'none'}.",
            code="data_missing",
            column=absent[0],
        )
    found = {name: _numbers(given[name], name, told) for name in names}
    lengths = {name: len(values) for name, values in found.items()}
    if len(set(lengths.values())) > 1:
        first = names[0]
        other = next(name for name in names if lengths[name] != lengths[first])
        raise DataError(
            f"{told}: column {other!r} has {lengths[other]} rows and {first!r} {lengths[first]}.",
            hint="Give one number of each column for every row.",
            code="data_lengths",
            column=other,
        )
    if names and not lengths[names[0]]:
        raise DataError(f"{told}: there is no row.", hint="Give at least one row.", code="data_empty")
    return found


def check_labels(
    labels: NDArray[np.float64], held_out: NDArray[np.bool_], name: str, kind: TableLabelKind, told: str
) -> None:
    """Refuse labels that are missing, or are not of their kind; and those of the rows that are trained on where they
    are all one number.

    Raises DataError (``data_cell``, ``data_classes``).
    """
    is_good, what = _LABELS[kind]
    wrong = ~is_good(labels)
    if bool(wrong.any()):
        row = int(np.argmax(wrong)) + 1
        raise DataError(
            f"{told}: label {name!r} {what} in row {row}.",
            hint="Leave such rows out, at every party; give large numbers in another unit, say in thousands.",
            code="data_cell",
            column=name,
            row=row,
        )
    used = labels[~held_out]
    if bool((used == used[:1]).all()):
        raise DataError(
            f"{told}: label {name!r} is the same in every row that is trained on.",
            hint="There is nothing to learn; check the column.",
            code="data_classes",
            column=name,
        )


def _given(source: TableSource, names: Sequence[str], told: str) -> Mapping[str, Any]:
    if isinstance(source, str | Path):
        try:
            known = table_names(source)
            found = read_numbers(source, [name for name in names if name in known])
        except DataError as error:
            # Readers of files begin with the file, which may be what rows are told of by.
            message = error.message if error.message.startswith(f"{told}: ") else f"{told}: {error.message}"
            raise DataError(message, hint=error.hint, code=error.reason, **error.details) from error
        if not known:
            raise DataError(
                f"{told}: there is no column.",
                hint="The first line of a CSV file names the columns.",
                code="data_empty",
            )
        return {**dict.fromkeys(known, ()), **found}
    given = cast(object, as_columns(source, told))
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(
            f"{told}: rows are a CSV file's path, a mapping of arrays, or a DataFrame, not a {type(source).__name__}."
        )
    return cast("Mapping[str, Any]", given)


def _numbers(given: object, name: str, told: str) -> NDArray[np.float64]:
    if isinstance(given, np.ma.MaskedArray):
        raise DataError(
            f"{told}: column {name!r} is masked, and the mask would be lost.",
            hint="Fill masked rows with NaN.",
            code="data_masked",
            column=name,
        )
    values = np.asarray(given)
    if values.ndim != 1:
        raise DataError(
            f"{told}: column {name!r} has the shape {list(values.shape)}, not one number a row.",
            hint="Give every column by itself.",
            code="data_shape",
            column=name,
        )
    if values.dtype.kind not in "buif":
        raise DataError(
            f"{told}: column {name!r} is {_kind(values)}, not numbers.",
            hint="Give categories a number each, and leave text and dates out.",
            code="data_dtype",
            column=name,
        )
    numbers = values.astype(np.float64)
    if bool(np.isinf(numbers).any()):
        row = int(np.argmax(np.isinf(numbers))) + 1
        raise DataError(
            f"{told}: column {name!r} is infinite in row {row}.",
            hint="Write NaN, or an empty cell, where there is no number.",
            code="data_cell",
            column=name,
            row=row,
        )
    return numbers


def _kind(values: NDArray[Any]) -> str:
    return "text" if values.dtype.kind in "OUS" else str(values.dtype)
