"""The ids of a party's rows, read from a file or from memory: columns by name, and only those that are ids."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

from numpy.typing import NDArray

from coterie.compute.data.sources.table_files import read_texts, table_names
from coterie.errors import ArgumentTypeError, DataError, nearest
from coterie.privacy.psi.ids import DEFAULT_RULES, normal_ids, ordered_rules
from coterie.protocol.frames import Frame, columns_of, is_frame

IdColumns: TypeAlias = Mapping[str, Sequence[Any] | NDArray[Any]]
"""Cells by column."""
IdRows: TypeAlias = str | Path | Mapping[str, Any] | Frame | Sequence[Any] | NDArray[Any]
"""A file (`coterie.compute.data.sources.table_files.FORMATS`), columns by name, a DataFrame, or the ids themselves."""


@dataclass(frozen=True)
class RowIds:
    """The normalised id of each row.

    source: what messages call where they are from.
    columns: names of those that make up an id.
    rules: by which they are normalised, in order.
    """

    source: str
    columns: tuple[str, ...]
    rules: tuple[str, ...]
    ids: list[bytes] = field(repr=False)

    @property
    def digest(self) -> str:
        """SHA-256 over all of them, in the order of the rows, hex."""
        digest = hashlib.sha256()
        for each in self.ids:
            digest.update(len(each).to_bytes(4, "big") + each)
        return digest.hexdigest()


def read_ids(
    rows: IdRows, ids: Sequence[str] = ("id",), *, rules: Collection[str] = DEFAULT_RULES, source: str | None = None
) -> RowIds:
    """The ids of rows.

    rows: see `IdRows`. Cells of a CSV file are taken as they are written, so that 007 is not 7.
    ids: the columns that make up an id, in the same order at all parties. Of a sequence there is one, whose name serves
        messages alone.
    rules: see `coterie.privacy.psi.ids.RULES`.
    source: what messages call the rows; a file's name, or words for what was given, when not given.
    Raises DataError (``ids_missing``, ``ids_repeated``, ``ids_kind``, ``data_empty``, and as readers of files do) with
    column and count, and never with an id; ArgumentValueError (``ids_rules``), ArgumentTypeError.
    """
    names: tuple[str, ...] = (ids,) if isinstance(ids, str) else tuple(ids)
    if not names or len(set(names)) < len(names):
        raise ArgumentTypeError('ids are the names of columns, each once, as in ids=("id",).')
    found, columns = _columns(rows, names)
    told = source or found
    return RowIds(told, names, ordered_rules(rules), normal_ids(columns, rules, told))


def _columns(rows: IdRows, names: tuple[str, ...]) -> tuple[str, IdColumns]:
    if isinstance(rows, str | Path):
        return Path(rows).name, _of_file(Path(rows), names)
    if is_frame(rows):
        return "the table given", _chosen(columns_of(rows, "the table given"), names, "the table given")
    if isinstance(rows, Mapping):
        return "the columns given", _chosen(rows, names, "the columns given")
    name, *others = names
    if others:
        raise ArgumentTypeError("A sequence is one column of ids; give several as a mapping by name.")
    return "the ids given", {name: cast(Sequence[Any], rows)}


def _of_file(path: Path, names: tuple[str, ...]) -> IdColumns:
    _chosen(dict.fromkeys(table_names(path), ()), names, path.name)
    return read_texts(path, names)


def _chosen(columns: Mapping[str, Any], names: tuple[str, ...], source: str) -> IdColumns:
    missing = next((name for name in names if name not in columns), None)
    if missing is not None:
        near = nearest(missing, map(str, columns))
        raise DataError(
            f"{source}: there is no column {missing!r}.",
            hint=(f"Did you mean {near}? " if near else "")
            + f"There are {', '.join(map(str, list(columns)[:20]))}; name those that are ids.",
            code="data_missing",
            column=missing,
        )
    return {name: columns[name] for name in names}
