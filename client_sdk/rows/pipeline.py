"""A source or a pipeline of ``compute.data`` as a device's data: rows that a schema checks, at once or as they come."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.compute.data.dataset import Dataset
from coterie.compute.data.source import Source
from coterie.compute.data.streamed_rows import StreamedRows
from coterie.errors import DataError
from coterie.protocol.rows import has_class
from coterie.protocol.schema import DataSchema

RowPipeline = Source | Dataset


def rows_of(pipeline: RowPipeline, schema: DataSchema) -> dict[str, NDArray[Any]]:
    """Every row's columns that the schema names, features whole or column by column; the others stay where they are.

    Raises DataError for rows whose values of a column differ in shape, ArgumentValueError for a pipeline without end.
    """
    return _arrays(_selected(Dataset.of(pipeline), schema).arrays())


def stream_of(dataset: Dataset, schema: DataSchema, source: str) -> StreamedRows:
    """The same rows, of which a batch is in memory at a time: made anew for each batch, and checked each time. Labels
    that are classes stay in memory.

    source: where they come from, for messages.
    Raises DataError for the first rows that do not fit, ArgumentValueError for a pipeline without end.
    """

    def check(columns: Mapping[str, Any], numbers: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], NDArray[Any] | None]:
        rows = schema.cells(_arrays(columns), source, numbers)
        return rows, has_class(rows, schema.label)

    rows = StreamedRows.of(_selected(dataset, schema), check, (schema.label.name,) if schema.label.is_class else ())
    if not rows.read:
        raise DataError(f"{source}: there are no rows.", hint="Add at least one example.", code="data_empty")
    return rows


def _selected(dataset: Dataset, schema: DataSchema) -> Dataset:
    """The columns that the schema names."""
    named = {*schema.array_names, *schema.sources}
    wanted = [name for name in dataset.columns if name in named]
    if not wanted:
        raise DataError(
            f"{dataset.describe()}: none of its columns, {', '.join(dataset.columns)}, is in the schema.",
            hint=f"The schema reads {', '.join(schema.sources[:20])}; rename columns with rename(old='new').",
            code="data_missing",
        )
    return dataset.select(*wanted)


def _arrays(columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: _array(name, values) for name, values in columns.items()}


def _array(name: str, values: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    if all(isinstance(value, str) for value in values):
        return np.array(values, np.str_)
    shapes = dict.fromkeys(str(np.shape(value)) for value in values)
    raise DataError(
        f"Column {name!r}: the rows hold values of shapes {' and '.join(list(shapes)[:3])}, or no numbers.",
        hint="Convert them to one shape and dtype with a step of the pipeline, such as map(DecodeImage(size=(28, "
        "28)), …).",
        code="data_shape",
        column=name,
    )
