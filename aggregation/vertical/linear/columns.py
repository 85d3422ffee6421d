"""One role's columns as a model takes them: mean 0, deviation 1."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coterie.errors import DataError

FARTHEST: Final = 32.0
"""Deviations from the mean, beyond which a value counts as this far."""


@dataclass(frozen=True, eq=False)
class Standard:
    """How columns are standardised. means, deviations: ``[columns]``; a deviation of 0 makes a column all 0."""

    names: tuple[str, ...]
    means: NDArray[np.float64]
    deviations: NDArray[np.float64]

    def apply(self, columns: Mapping[str, NDArray[np.float64]], rows: int) -> NDArray[np.float64]:
        """``[rows, columns]``, in the order of the names."""
        given = _joined(columns, self.names, rows) - self.means
        found = np.divide(given, self.deviations, out=np.zeros_like(given), where=self.deviations > 0)
        return np.clip(found, -FARTHEST, FARTHEST)


def standard_of(columns: Mapping[str, NDArray[np.float64]], used: NDArray[np.int64], rows: int) -> Standard:
    """Means and deviations over the rows that are used. columns: ``[rows]`` each."""
    given = _joined(columns, tuple(columns), rows)[used]
    # That of one number many times may be a last bit, and not 0.
    deviations = np.where(given.min(axis=0) < given.max(axis=0), given.std(axis=0), 0.0)
    return Standard(tuple(columns), given.mean(axis=0), deviations)


def check_complete(columns: Mapping[str, NDArray[np.float64]], told: str) -> None:
    """Refuse rows that lack a number.

    told: whose they are.
    Raises DataError (``data_cell``).
    """
    for name, values in columns.items():
        if np.isnan(values).any():
            row = int(np.argmax(np.isnan(values))) + 1
            raise DataError(
                f"{told}: column {name!r} has no number in row {row}.",
                hint="Fill it, say with the column's mean, or leave the column out; trees take rows that lack numbers.",
                code="data_cell",
                column=name,
                row=row,
            )


def check_weights(weights: NDArray[np.float64], name: str, told: str) -> None:
    """Refuse weights of rows that are not above 0, or are far from all others. weights: ``[rows]``, or empty.

    name: of their column. told: whose they are.
    Raises DataError (``data_cell``).
    """
    wrong = ~((weights > 0) & (weights <= FARTHEST * weights.mean())) if len(weights) else np.zeros(0, np.bool_)
    if wrong.any():
        row = int(np.argmax(wrong)) + 1
        raise DataError(
            f"{told}: weight {name!r} is not above 0 and at most {FARTHEST:.0f} times the mean in row {row}.",
            hint="Leave rows without weight out, at both parties.",
            code="data_cell",
            column=name,
            row=row,
        )


def _joined(columns: Mapping[str, NDArray[np.float64]], names: tuple[str, ...], rows: int) -> NDArray[np.float64]:
    return np.stack([columns[name] for name in names], axis=1) if names else np.empty((rows, 0))
