"""Loading rows of a device or of an evaluation: a folder, a CSV or NPZ file, a Python function, or arrays, checked
against the population's schema.

Only what the schema names is read; other columns and arrays of a file are ignored and never leave the file. No pickle
is ever loaded. Errors are `coterie.errors.DataError` naming file, column and row (the first row of data is 1).
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from coterie.client_sdk.rows.allowed import require_allowed
from coterie.client_sdk.rows.pipeline import RowPipeline, rows_of, stream_of
from coterie.compute.data.dataset import Dataset
from coterie.compute.data.sources.csv.source import CsvSource
from coterie.compute.data.sources.npz import DAMAGE, opened_npz, unreadable
from coterie.compute.data.streamed_rows import StreamedRows
from coterie.compute.data.supply import row_count
from coterie.errors import DataError
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.checked_rows import CheckedRows
from coterie.protocol.frames import Frame, as_columns, columns_of, is_frame
from coterie.protocol.rows import check_left
from coterie.protocol.schema import DataSchema

Given = ArraysByName | Frame | RowPipeline
"""Rows as they are, in memory or to be made."""
DataSource = str | Path | Given | Callable[[DataSchema], Given]


def load_data(source: DataSource, schema: DataSchema, *, allowed: Collection[str] | None = None) -> CheckedRows:
    """The rows of ``source``, checked: features ``[N, *shape]`` and label ``[N]`` in the schema's dtypes.

    source: one of

    - a file ``*.csv`` or ``*.csv.gz`` with a header line that names the schema's columns, in any order, or ``*.npz``
      with an array per name;
    - a folder with one ``<name>.npy`` per feature and label, or else with such files, joined row after row in the order
      of their names;
    - ``"module:function"``, called with the schema if it takes an argument, found as ``import`` finds it or in the
      working folder, or the name of what such a function returns;
    - the function itself; a mapping of arrays; a pandas DataFrame, whose index is left out; or a source or a data set
      of ``coterie.compute.data``, whose first pass is taken.

    allowed: names of the columns, arrays and files that may be read of it; all that the schema names when not given.

    Raises DataError, PlanRefused (``plan_columns``).
    """
    rows = load_fitting(source, schema, allowed=allowed)
    check_left(len(rows[schema.label.name]), schema.label, _describe(cast(object, source)))
    return rows


def load_rows(source: DataSource, schema: DataSchema) -> CheckedRows | StreamedRows:
    """As `load_data`, but a data set of ``coterie.compute.data`` stays one: gone over once to check it, and made anew
    for every batch.
    """
    rows = load_fitting_rows(source, schema)
    check_left(row_count(rows), schema.label, _describe(cast(object, source)))
    return rows


def load_fitting_rows(source: DataSource, schema: DataSchema) -> CheckedRows | StreamedRows:
    """As `load_rows`, but there may be no row left of those that the label's classes choose."""
    check_source(source, "The data")
    given = _given(source, schema)
    if isinstance(given, Dataset):
        return stream_of(given, schema, _describe(source))
    return _fitting(given, _describe(source), schema, None)


def load_fitting(source: DataSource, schema: DataSchema, *, allowed: Collection[str] | None = None) -> CheckedRows:
    """As `load_data`, but there may be no row left of those that the label's classes choose."""
    check_source(source, "The data")
    return _fitting(_given(source, schema), _describe(source), schema, allowed)


def _fitting(given: Given | Path, told: str, schema: DataSchema, allowed: Collection[str] | None) -> CheckedRows:
    # Each file is checked on its own, so that an error names the file and its row.
    parts: list[CheckedRows] = []
    for arrays, name in _arrays_of(given, told, schema):
        if allowed is not None:
            named = {*schema.array_names, *schema.sources}
            require_allowed((each for each in arrays if each in named), name, allowed)
        parts.append(schema.fitting(arrays, name))
    if len(parts) == 1:
        return parts[0]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return CheckedRows(joined, schema.digest, read=sum(part.read for part in parts))


def _given(source: DataSource, schema: DataSchema) -> Given | Path:
    """What a function makes, or what a name stands for; a file or folder by its path; anything else as it is."""
    if is_frame(source) or isinstance(source, Mapping | RowPipeline):
        return cast(Given, source)
    if isinstance(source, str) and _is_entry_point(source):
        found = _imported(source)
        return found if isinstance(found, RowPipeline) else _call_source(found, schema)
    if callable(source):
        return _call_source(source, schema)
    return Path(cast("str | Path", source))


def _arrays_of(given: Given | Path, told: str, schema: DataSchema) -> Iterator[tuple[ArraysByName, str]]:
    """All that is read, file by file, each with what messages call it.

    told: what messages call what is no file.
    """
    if is_frame(given):
        yield columns_of(given, told), told
    elif isinstance(given, Mapping):
        yield given, told
    elif isinstance(given, RowPipeline):
        yield rows_of(given, schema), told
    elif (path := cast(Path, given)).is_dir():
        yield from _folder(path, schema)
    else:
        yield _file(path, schema), path.name


def load_evaluation(source: DataSource | None, schema: DataSchema) -> Mapping[str, NDArray[Any]] | None:
    """The rows on which a coordinator or a simulation measures versions, checked; None for none.

    source: as for `load_data`, an experiment's ``evaluation``.
    Raises DataError.
    """
    if source is None:
        return None
    if isinstance(source, Mapping) or is_frame(source):
        return schema.check(cast(ArraysByName, as_columns(source, "evaluation")), "evaluation")
    return load_data(source, schema)


def blank_rows(schema: DataSchema, count: int) -> dict[str, NDArray[Any]]:
    """So many rows of a schema, all zeros."""
    blank: dict[str, NDArray[Any]] = {each.name: np.zeros((count, *each.shape), each.dtype) for each in schema.features}
    return blank | {schema.label.name: np.zeros((count, *schema.label.shape), schema.label.dtype)}


def _describe(source: object) -> str:
    """What messages call the source."""
    if is_frame(source):
        return "the table given"
    if isinstance(source, Mapping):
        return "the arrays given"
    if isinstance(source, RowPipeline):
        return "the pipeline given"
    if callable(source):
        return _describe_function(cast(Callable[..., Given], source))
    return str(source) if _is_entry_point(str(source)) else Path(str(source)).name


def check_source(source: object, what: str) -> None:
    """Raise DataError (``data_missing``) for what no device takes as its data: callers are not all typed.

    what: whose it is, for the message.
    """
    if not (isinstance(source, str | os.PathLike | Mapping | RowPipeline) or is_frame(source) or callable(source)):
        raise DataError(
            f"{what} must be arrays by feature and label name, a file or a function, not a {type(source).__name__}.",
            hint='Give a mapping such as {"x": x, "y": y}, a file or folder, "module:function", a function, or a '
            "source of coterie.compute.data.",
            code="data_missing",
        )


def _is_entry_point(source: str) -> bool:
    module, colon, function = source.partition(":")
    return bool(colon) and all(part.isidentifier() for part in module.split(".")) and function.isidentifier()


def _imported(source: str) -> Callable[[DataSchema], Given] | RowPipeline:
    module, _, function = source.partition(":")
    # A script's own folder is on the path, that of an installed command is not; its user expects the working folder
    # there.
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise DataError(
            f"{source}: there is no module {module!r}.",
            hint=f"Run from the folder that holds {module.split('.')[0]}.py, or install it.",
            code="data_missing",
        ) from error
    finally:
        sys.path.remove(os.getcwd())
    if isinstance(found, RowPipeline):
        return found
    if not callable(found):
        raise DataError(f"{source}: the module has no function {function!r}.", code="data_missing")
    return cast(Callable[[DataSchema], Given], found)


def _call_source(function: Callable[..., Given], schema: DataSchema) -> ArraysByName | RowPipeline:
    takes_schema = any(
        parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in inspect.signature(function).parameters.values()
    )
    made = function(schema) if takes_schema else function()
    if isinstance(made, RowPipeline):
        return made
    arrays = cast(object, as_columns(made, _describe_function(function)))
    if not isinstance(arrays, Mapping):
        raise DataError(
            f"{_describe_function(function)} returned {type(arrays).__name__}, not arrays by name.",
            hint=f"Return a dict with {', '.join(schema.sources[:10])}.",
            code="data_missing",
        )
    return {str(name): np.asarray(value) for name, value in cast(Mapping[object, Any], arrays).items()}


def _describe_function(function: Callable[..., Given]) -> str:
    return f"function {getattr(function, '__qualname__', repr(function))}"


def _folder(path: Path, schema: DataSchema) -> Iterator[tuple[ArraysByName, str]]:
    names = schema.array_names
    # By what the folder holds: a name that the schema says may be a path that leads out of it.
    arrays = {file.name.removesuffix(".npy"): file for file in path.glob("*.npy") if file.is_file()}
    if all(name in arrays for name in names):
        yield {name: _npy(arrays[name]) for name in names}, str(path)
        return
    files = sorted(file for file in path.iterdir() if file.is_file() and _kind(file) is not None)
    if not files:
        raise DataError(
            f"{path}: the folder has no .csv, .csv.gz or .npz file, nor .npy files of {', '.join(names[:10])}.",
            hint="Name the folder that holds this client's rows, or a file.",
            code="data_missing",
        )
    for file in files:
        yield _file(file, schema), file.name


def _file(path: Path, schema: DataSchema) -> ArraysByName:
    if not path.is_file():
        raise DataError(
            f"{path}: there is no such file or folder.",
            hint="Give a folder, a .csv, .csv.gz or .npz file, or module:function.",
            code="data_missing",
        )
    kind = _kind(path)
    if kind is None:
        raise DataError(
            f"{path}: the ending {path.suffix!r} is not known.",
            hint="Give a .csv, .csv.gz or .npz file, a folder of them, or module:function.",
            code="data_unknown_format",
        )
    return kind(path, schema)


def _kind(path: Path) -> Callable[[Path, DataSchema], ArraysByName] | None:
    return next((reader for ending, reader in _READERS.items() if path.name.lower().endswith(ending)), None)


def _npy(path: Path) -> NDArray[Any]:
    try:
        return cast(NDArray[Any], np.load(path, allow_pickle=False))
    except DAMAGE as error:
        raise unreadable(path.name, error) from error


def _npz(path: Path, schema: DataSchema) -> ArraysByName:
    wanted = {*schema.array_names, *schema.sources}
    with opened_npz(path) as archive:
        return {name: archive[name] for name in archive if name in wanted}


def _csv(path: Path, schema: DataSchema) -> ArraysByName:
    return _columns(path, schema.sources, schema.texts)


def _columns(path: Path, names: Sequence[str], texts: frozenset[str]) -> dict[str, NDArray[Any]]:
    """Columns as numbers where every cell is one, but for ``texts``; else as text, from which the schema's check names
    the bad cell, and says what it expected.
    """
    source = CsvSource(path, {name: name for name in names}, dict.fromkeys(texts, "str"))
    try:
        rows = source.rows(np.arange(len(source)))
    except DataError as error:
        column = str(error.details.get("column"))
        if error.reason == "data_cell" and column not in texts:
            return _columns(path, names, texts | {column})
        raise
    read = {name: np.array(values) if isinstance(values, list) else np.asarray(values) for name, values in rows.items()}
    gaps = frozenset(name for name, array in read.items() if array.dtype.kind == "f" and np.isnan(array).any())
    if gaps:
        told = _columns(path, names, texts | gaps)
        # A cell may also say "nan", which is a number to Python; an empty one is none.
        return told | {name: read[name] for name in gaps if np.char.str_len(np.char.strip(told[name])).all()}
    # Whole numbers, too, may be rounded on their way to float32, as numbers with a point are.
    return {name: array.astype(np.float64) if array.dtype.kind == "i" else array for name, array in read.items()}


_READERS: Mapping[str, Callable[[Path, DataSchema], ArraysByName]] = {".csv": _csv, ".csv.gz": _csv, ".npz": _npz}
