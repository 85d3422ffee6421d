"""Rows of a file as what a model takes: columns matched with the names of its inputs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.compute.export import Examples
from coterie.errors import DataError
from coterie.protocol.schema import DataSchema

_LABELS = ("label", "y")


def from_schema(path: Path, schema: DataSchema, names: Sequence[str]) -> Examples:
    """Rows as an experiment's devices read them: checked, classes as numbers. Raises DataError."""
    from coterie.client_sdk.rows.loading import load_data

    arrays = load_data(path, schema)
    return Examples(inputs=_input_columns(arrays, names, path), labels=arrays[schema.label.name])


def from_columns(path: Path, names: Sequence[str], label: str | None, *, labelled: bool = True) -> Examples:
    """Rows as they stand in a file. A model of one input takes all columns but the label's side by side, when none has
    the input's name.

    labelled: whether a label that is named must be there.
    Raises DataError for one that is not, and for columns that are no numbers.
    """
    columns = _read(path)
    wanted = next((name for name in (_LABELS if label is None else (label,)) if name in columns), None)
    if label is not None and wanted is None and labelled:
        raise DataError(
            f"{path.name} has no column {label!r}; it has {_list_columns(columns)}.",
            hint="Name the label's column with --label.",
            code="data_missing",
        )
    rest = {name: column for name, column in columns.items() if name != wanted}
    if len(names) == 1 and not any(_base_name(names[0]) == name or names[0] == name for name in rest):
        rest = {names[0]: _as_matrix(path, rest)}
    labels = None if wanted is None or not labelled else columns[wanted]
    if labels is not None and labels.dtype.kind not in "biuf":
        raise DataError(
            f"{path.name}: the label {wanted!r} is text, and the model answers with numbers.",
            hint="Name the experiment whose schema knows the classes: --experiment FILE.",
            code="data_invalid",
        )
    return Examples(inputs=_input_columns(rest, names, path), labels=labels)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    from coterie.compute.data.sources.opening import open_source

    source = open_source(path)
    rows = source.rows(np.arange(len(source), dtype=np.int64))
    return {name: np.asarray(column) for name, column in rows.items()}


def _input_columns(columns: Mapping[str, NDArray[Any]], names: Sequence[str], path: Path) -> dict[str, NDArray[Any]]:
    """Each input's column: of its own name, or of what stands behind the last slash of it ("batch/x" is x)."""
    found: dict[str, NDArray[Any]] = {}
    for name in names:
        held = columns.get(name, columns.get(_base_name(name)))
        if held is None:
            raise DataError(
                f"{path.name} has no column for the model's input {name!r}; it has {_list_columns(columns)}.",
                hint=f"Call the column or array {_base_name(name)!r}.",
                code="data_missing",
            )
        found[name] = held
    return found


def _base_name(name: str) -> str:
    return name.rpartition("/")[2]


def _as_matrix(path: Path, columns: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """All columns as one matrix; a single one as it is."""
    if text := [name for name, column in columns.items() if column.dtype.kind not in "biuf"]:
        raise DataError(
            f"{path.name}: column {text[0]!r} is text, and the model takes numbers.",
            hint="Name the experiment whose schema reads it: --experiment FILE.",
            code="data_invalid",
        )
    held = list(columns.values())
    if not held:
        raise DataError(f"{path.name} has no columns but the label's.", code="data_missing")
    return held[0] if len(held) == 1 else np.concatenate([column.reshape(len(column), -1) for column in held], axis=1)


def _list_columns(columns: Mapping[str, object]) -> str:
    return ", ".join(list(columns)[:12]) or "nothing"
