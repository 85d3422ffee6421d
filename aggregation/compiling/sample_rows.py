"""Made-up rows of a schema, for who wants to see a plan compute before there are any."""

from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.schema_rules import range_of

WIDEST = 1e6
"""Of a range whose numbers are drawn evenly; in a wider one they lie near what normalisation takes for the middle."""

_Array = npt.NDArray[Any]


def sample_rows(schema: DataSchema, count: int, rng: np.random.Generator) -> dict[str, _Array]:
    """So many rows by column, each value one that the schema takes."""
    rows = {each.name: _column(each, count, rng) for each in schema.features}
    return rows | {schema.label.name: _labels(schema.label, count, rng)}


def _column(feature: Feature, count: int, rng: np.random.Generator) -> _Array:
    shape, low, high = (count, *feature.shape), feature.low, feature.high
    if feature.vocabulary is not None:
        low, high = 0, len(feature.vocabulary)
    if feature.dtype != "float32":
        least, most = range_of(feature.dtype)
        return _whole(low, high, shape, rng).clip(least, most).astype(feature.dtype)
    offset, scale = feature.normalisation()
    near = offset + rng.standard_normal(shape) / np.where(scale == 0, 1, scale)
    return _real(near, low, high, rng)


def _labels(label: Label, count: int, rng: np.random.Generator) -> _Array:
    shape = (count, *label.shape)
    if label.constant is not None:
        return np.full(shape, label.constant, label.dtype)
    low, high = (label.low, label.high) if label.classes is None else (0, len(label.classes) - 1)
    if label.dtype == "int32":
        return _whole(low, high, shape, rng).astype(np.int32)
    return _real(rng.standard_normal(shape), low, high, rng)


def _whole(low: float | None, high: float | None, shape: tuple[int, ...], rng: np.random.Generator) -> _Array:
    """Whole numbers in bounds; without bounds 0 and 1, which every table has."""
    first = int(np.ceil(low)) if low is not None else min(0, int(np.floor(high or 0)))
    last = int(np.floor(high)) if high is not None else first + 1
    return rng.integers(first, last, shape, endpoint=True)


def _real(near: _Array, low: float | None, high: float | None, rng: np.random.Generator) -> _Array:
    if low is not None and high is not None and high - low <= WIDEST:
        drawn = rng.uniform(low, high, near.shape)
    else:
        drawn = np.clip(near, low, high) if (low, high) != (None, None) else near
    return drawn.astype(np.float32)
