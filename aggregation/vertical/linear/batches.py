"""Which rows a step takes. Batches are drawn once for a training and come again in each epoch: of rows that are joined
anew each time, many sums with the same labels in them would tell these labels one by one.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.linear.terms import ROWS_PER_COLUMN, LinearTerms
from coterie.errors import ConfigurationError

PART: Final = 1024
"""Rows of one message, which bounds memory."""


def batches_of(terms: LinearTerms, rows: int) -> list[slice]:
    """Each batch of an epoch, of ``batch_rows`` or a few more, by place in the order of rows."""
    count = max(1, rows // terms.batch_rows) if terms.batch_rows else 1
    edges = [number * rows // count for number in range(count + 1)]
    return [slice(first, last) for first, last in zip(edges, edges[1:], strict=False)]


def parts_of_batch(batch: slice) -> list[slice]:
    """The messages of a batch."""
    return [slice(at, min(at + PART, batch.stop)) for at in range(batch.start, batch.stop, PART)]


def largest_batch(terms: LinearTerms, rows: int) -> int:
    """The most rows of a batch."""
    return max(batch.stop - batch.start for batch in batches_of(terms, rows))


def steps_of(terms: LinearTerms, rows: int) -> int:
    """How many steps a training has."""
    return terms.epochs * len(batches_of(terms, rows))


def check_columns(terms: LinearTerms, rows: NDArray[np.float64], names: Sequence[str], role: str) -> None:
    """`check_column` of every batch. rows: those that are trained on, in their order, ``[rows, columns]``."""
    for batch in batches_of(terms, len(rows)):
        for name, values in zip(names, rows[batch].T, strict=True):
            check_column(values, name, role)


def check_column(values: NDArray[np.float64], name: str, role: str) -> None:
    """Refuse a column in which few rows differ from all others: the sum for it would be of these rows.

    values: of rows that are summed, ``[rows]``. name: of the column. role: whose it is.
    Raises ConfigurationError (``linear_rows``).
    """
    others = len(values) - int(np.unique(values, return_counts=True)[1].max())
    if 0 < others < ROWS_PER_COLUMN:
        raise ConfigurationError(
            f"In column {name!r} of {role} all rows of a batch but {others} are alike; a sum over so few tells "
            "numbers of single rows.",
            hint=f"Leave the column out, or take larger batches: {ROWS_PER_COLUMN} rows must differ from the commonest "
            "value. A training that was begun needs a new session and new folders for that.",
            code="linear_rows",
        )


def check_batches(terms: LinearTerms, rows: int, columns: Mapping[str, int]) -> None:
    """Refuse batches of so few rows that a sum for each column tells residuals of rows: a feature owner the labels, the
    label owner the other's part of each row's score.

    columns: of each role, without the intercept.
    Raises ConfigurationError (``linear_rows``).
    """
    least = min(batch.stop - batch.start for batch in batches_of(terms, rows))
    role, most = max(columns.items(), key=lambda item: item[1])
    if least < ROWS_PER_COLUMN * most:
        raise ConfigurationError(
            f"A batch has {least} rows for {most} columns of {role}; sums over so few tell it numbers of single rows.",
            hint=f"Take {ROWS_PER_COLUMN} rows for each of its columns: larger batches (batch_rows), or fewer columns. "
            "A training that was begun needs a new session and new folders for that.",
            code="linear_rows",
        )
