"""Loading a device's rows: a folder, a CSV or NPZ file, a Python function, or arrays, checked against the population's
schema.

Only what the schema names is read; other columns and arrays of a file are ignored and never leave the file. No pickle
is ever loaded. Errors are `coterie.errors.DataError` naming file, column and row (the first row of data is 1).
"""

import csv
import gzip
import importlib
import inspect
import os
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from coterie.client_sdk.device.pipeline import Pipeline, rows_of
from coterie.errors import DataError
from coterie.protocol.schema import DataSchema

Arrays = Mapping[str, NDArray[Any]]
DataSource = str | Path | Arrays | Pipeline | Callable[[DataSchema], Arrays]


def load_data(source: DataSource, schema: DataSchema) -> dict[str, NDArray[Any]]:
    """The rows of ``source``, checked: features ``[N, *shape]`` and label ``[N]`` in the schema's dtypes.

    source: one of

    - a file ``*.csv`` or ``*.csv.gz`` with a header line that names the schema's columns, in any order, or ``*.npz``
      with an
      array per name;
    - a folder with one ``<name>.npy`` per feature and label, or else with such files, joined row after row in the order
      of
      their names;
    - ``"module:function"``, called with the schema if it takes an argument, found as ``import`` finds it or in the
      working folder;
    - the function itself; a mapping of arrays; or a source or a data set of ``coterie.compute.data``, whose first pass
      is taken.

    Raises DataError.
    """
    if isinstance(source, Mapping):
        return schema.check(cast(Arrays, source), "the arrays given")
    if isinstance(source, Pipeline):
        return schema.check(rows_of(source, schema), "the pipeline given")
    if callable(source):
        return schema.check(_called(source, schema), _named(source))
    if isinstance(source, str) and _is_entry_point(source):
        return schema.check(_called(_imported(source), schema), source)
    path = Path(source)
    if path.is_dir():
        return _folder(path, schema)
    return schema.check(_file(path, schema), path.name)


def _is_entry_point(source: str) -> bool:
    module, colon, function = source.partition(":")
    return bool(colon) and all(part.isidentifier() for part in module.split(".")) and function.isidentifier()


def _imported(source: str) -> Callable[[DataSchema], Arrays]:
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
    if not callable(found):
        raise DataError(f"{source}: the module has no function {function!r}.", code="data_missing")
    return cast(Callable[[DataSchema], Arrays], found)


def _called(function: Callable[..., Arrays], schema: DataSchema) -> Arrays:
    takes_schema = any(
        parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in inspect.signature(function).parameters.values()
    )
    arrays = cast(object, function(schema) if takes_schema else function())
    if not isinstance(arrays, Mapping):
        raise DataError(
            f"{_named(function)} returned {type(arrays).__name__}, not arrays by name.",
            hint=f"Return a dict with {', '.join(schema.sources[:10])}.",
            code="data_missing",
        )
    return {str(name): np.asarray(value) for name, value in cast(Mapping[object, Any], arrays).items()}


def _named(function: Callable[..., Arrays]) -> str:
    return f"function {getattr(function, '__qualname__', repr(function))}"


def _folder(path: Path, schema: DataSchema) -> dict[str, NDArray[Any]]:
    names = schema.given
    if all((path / f"{name}.npy").is_file() for name in names):
        return schema.check({name: _npy(path / f"{name}.npy") for name in names}, str(path))
    files = sorted(file for file in path.iterdir() if file.is_file() and _kind(file) is not None)
    if not files:
        raise DataError(
            f"{path}: the folder has no .csv, .csv.gz or .npz file, nor .npy files of {', '.join(names[:10])}.",
            code="data_missing",
        )
    # Each file is checked on its own, so that an error names the file and its row.
    parts = [schema.check(_file(file, schema), file.name) for file in files]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _file(path: Path, schema: DataSchema) -> Arrays:
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


def _kind(path: Path) -> Callable[[Path, DataSchema], Arrays] | None:
    return next((reader for ending, reader in _READERS.items() if path.name.lower().endswith(ending)), None)


def _npy(path: Path) -> NDArray[Any]:
    try:
        return cast(NDArray[Any], np.load(path, allow_pickle=False))
    except _DAMAGE as error:
        raise _unreadable(path, error) from error


def _npz(path: Path, schema: DataSchema) -> Arrays:
    wanted = {*schema.given, *schema.sources}
    try:
        # NumPy leaves a file open that it opened itself and cannot read.
        with path.open("rb") as source:
            file: Any = np.load(source, allow_pickle=False)
            if not isinstance(file, NpzFile):
                raise ValueError("it holds one array without a name, as .npy files do")
            return {name: cast(Any, file)[name] for name in file.files if name in wanted}
    except _DAMAGE as error:
        raise _unreadable(path, error) from error


def _csv(path: Path, schema: DataSchema) -> Arrays:
    try:
        with _text(path) as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, list[str]())]
            columns = _columns(path, header, schema.sources)
            return _read_columns(path, reader, header, columns, schema.texts)
    except _DAMAGE as error:
        raise _unreadable(path, error) from error


def _text(path: Path) -> IO[str]:
    # utf-8-sig: spreadsheets begin their files with a byte order mark.
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _columns(path: Path, header: Sequence[str], wanted: Sequence[str]) -> dict[str, int]:
    missing = [name for name in wanted if name not in header]
    if missing:
        found = ", ".join(header[:20]) or "an empty first line"
        more = f" and {len(missing) - 1} more are" if missing[1:] else " is"
        raise DataError(
            f"{path.name}: column {missing[0]!r}{more} missing; found {found}.",
            hint="The first line must name the columns.",
            code="data_missing",
            column=missing[0],
        )
    twice = [name for name in wanted if header.count(name) > 1]
    if twice:
        raise DataError(
            f"{path.name}: the first line names column {twice[0]!r} twice.", code="data_surplus", column=twice[0]
        )
    return {name: header.index(name) for name in wanted}


def _read_columns(
    path: Path, rows: Iterator[list[str]], header: Sequence[str], columns: Mapping[str, int], texts: frozenset[str]
) -> Arrays:
    chunks: dict[str, list[NDArray[Any]]] = {name: [] for name in columns}
    width, count = len(header), 0
    filled = (row for row in rows if row)
    while block := list(islice(filled, 50_000)):
        for offset, row in enumerate(block):
            if len(row) != width:
                raise DataError(
                    f"{path.name}: row {count + offset + 1} has {len(row)} cells; the first line has {width}.",
                    hint="Quote cells that contain commas.",
                    code="data_shape",
                    row=count + offset + 1,
                )
        turned = list(zip(*block, strict=True))
        for name, index in columns.items():
            chunks[name].append(np.array(turned[index]) if name in texts else _numbers_or_text(turned[index]))
        count += len(block)
    return {name: _join(parts) for name, parts in chunks.items()}


def _numbers_or_text(cells: Sequence[str]) -> NDArray[Any]:
    """Numbers where every cell is one; else the text, from which the schema's check names the bad cell."""
    text = np.array(cells)
    try:
        # Underscores are digits' separators to Python and to nobody else.
        return text if any("_" in cell for cell in cells) else text.astype(np.float64)
    except ValueError:
        return text


def _join(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if not parts:
        return np.empty(0)
    if len({part.dtype.kind for part in parts}) > 1:
        return np.concatenate([part.astype(str) for part in parts])
    return np.concatenate(parts)


# Whatever the readers raise for a file that is damaged or of another format (a wrong encoding is a ValueError).
_DAMAGE = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, csv.Error)


def _unreadable(path: Path, error: Exception) -> DataError:
    # NumPy takes whatever it does not know for a pickle, and advises to load it unsafely.
    pickled = isinstance(error, ValueError) and "pickle" in str(error)
    why = "it is no NPZ file of plain arrays, and nothing is unpickled" if pickled else str(error).rstrip(".")
    return DataError(
        f"{path.name} cannot be read: {why}.",
        hint="Check that the file is whole and of that format.",
        code="data_unreadable",
    )


_READERS: Mapping[str, Callable[[Path, DataSchema], Arrays]] = {".csv": _csv, ".csv.gz": _csv, ".npz": _npz}
