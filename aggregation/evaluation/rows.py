"""Scores, labels and weights as figures need them, checked."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import DataError
from coterie.protocol.arrays import Vector


def numbers_of(given: NDArray[Any] | object, name: str, rows: int | None = None) -> Vector:
    """Finite numbers, one a row.

    name: what they are called in messages.
    rows: how many there have to be; at least one when not given.
    Raises DataError (``data_dtype``, ``data_shape``, ``data_lengths``, ``data_empty``, ``data_cell``).
    """
    found = np.asarray(given)
    if found.dtype.kind not in "buif":
        raise DataError(f"{name}: these are not numbers.", hint="Give one number a row.", code="data_dtype")
    if found.ndim != 1:
        raise DataError(
            f"{name}: the shape is {list(found.shape)}, not one number a row.",
            hint="Of a network's outputs, `chances` gives the chance of label 1.",
            code="data_shape",
        )
    if rows is not None and len(found) != rows:
        raise DataError(
            f"{name}: there are {len(found)}, and {rows} rows.",
            hint="Give one number of each for every row.",
            code="data_lengths",
        )
    if not len(found):
        raise DataError(f"{name}: there is no row.", hint="Give at least one.", code="data_empty")
    wrong = ~np.isfinite(found)
    if bool(wrong.any()):
        row = int(np.argmax(wrong)) + 1
        raise DataError(
            f"{name}: row {row} has no finite number.",
            hint="Leave rows without a score or a label out.",
            code="data_cell",
            row=row,
        )
    return found.astype(np.float64)


def class_labels(given: NDArray[Any] | object, name: str = "labels", rows: int | None = None) -> Vector:
    """Labels 0 and 1. Raises DataError as `numbers_of` does."""
    labels = numbers_of(given, name, rows)
    wrong = ~np.isin(labels, (0.0, 1.0))
    if bool(wrong.any()):
        row = int(np.argmax(wrong)) + 1
        raise DataError(
            f"{name}: row {row} is not 0 or 1.",
            hint="Figures of classes need labels 0 and 1; those of numbers are computed apart.",
            code="data_cell",
            row=row,
        )
    return labels


def row_weights(given: NDArray[Any] | object | None, rows: int) -> Vector | None:
    """Weights, not negative and not all 0; None where each row counts once. Raises DataError as `numbers_of` does."""
    if given is None:
        return None
    weights = numbers_of(given, "weights", rows)
    wrong = weights < 0
    if bool(wrong.any()) or not weights.sum():
        row = int(np.argmax(wrong)) + 1
        raise DataError(
            "weights: all are 0." if not wrong.any() else f"weights: row {row} is negative.",
            hint="A weight says how often a row counts.",
            code="data_cell",
            row=row,
        )
    return weights


def chances(outputs: NDArray[Any] | object) -> Vector:
    """The chance of label 1 that a network's outputs say.

    outputs: logits: ``[rows, 2]`` of both labels, or ``[rows]`` or ``[rows, 1]`` of label 1.
    Raises DataError (``data_shape``).
    """
    found = np.asarray(outputs, np.float64)
    if found.ndim == 2 and found.shape[1] == 2:
        logits = found[:, 1] - found[:, 0]
    elif found.ndim == 1 or (found.ndim == 2 and found.shape[1] == 1):
        logits = found.reshape(len(found))
    else:
        raise DataError(
            f"outputs: the shape is {list(found.shape)}, not that of two labels' logits.",
            hint="Give [rows, 2], [rows, 1] or [rows].",
            code="data_shape",
        )
    return np.exp(-np.logaddexp(0.0, -logits))
