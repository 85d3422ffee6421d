"""A source or a pipeline of ``compute.data`` as a device's data: its first pass, as arrays that a schema checks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.compute.data.dataset import Dataset
from coterie.compute.data.source import Source
from coterie.errors import DataError
from coterie.protocol.schema import DataSchema

RowPipeline = Source | Dataset


def rows_of(pipeline: RowPipeline, schema: DataSchema) -> dict[str, NDArray[Any]]:
    """Every row's columns that the schema names, features whole or column by column; the others stay where they are.

    Raises DataError for rows whose values of a column differ in shape, ArgumentValueError for a pipeline without end.
    """
    dataset = Dataset.of(pipeline)
    named = {*schema.array_names, *schema.sources}
    wanted = [name for name in dataset.columns if name in named]
    if not wanted:
        raise DataError(
            f"{dataset.describe()}: none of its columns, {', '.join(dataset.columns)}, is in the schema.",
            hint=f"The schema reads {', '.join(schema.sources[:20])}; rename columns with rename(old='new').",
            code="data_missing",
        )
    return {name: _array(name, values) for name, values in dataset.select(*wanted).arrays().items()}


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
