"""Tables of all parties of a method, at hand in one process."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.tables import TableSource, read_columns
from coterie.errors import ConfigurationError, DataError


def read_tables(
    parties: Sequence[str],
    tables: Mapping[str, TableSource],
    columns: Mapping[str, Sequence[str]],
    owned: Sequence[str],
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """The columns of each role, ``[rows]`` each, as many in all.

    parties: the roles, the label owner first.
    columns: of each role, those that are learned from. owned: what is read of the label owner beside.
    Raises ConfigurationError (``role_unknown``), DataError (``data_lengths``, and as `read_columns` does).
    """
    for given in (tables, columns):
        if set(given) != set(parties):
            raise ConfigurationError(
                f"The terms are for the roles {', '.join(sorted(parties))}, and these are {', '.join(sorted(given))}.",
                hint="Give each role its table and its columns.",
                code="role_unknown",
            )
    owner = parties[0]
    read = {
        role: read_columns(tables[role], (*columns[role], *(owned if role == owner else ())), role) for role in parties
    }
    same_rows({role: len(next(iter(found.values()))) for role, found in read.items() if found})
    return read


def held_rows(held_out: NDArray[np.bool_] | None, owner: str, rows: int) -> NDArray[np.bool_]:
    """Which rows are held out, ``[rows]``; none when not given. Raises DataError (``data_lengths``)."""
    held = np.zeros(rows, np.bool_) if held_out is None else np.asarray(held_out, np.bool_)
    same_rows({owner: rows, "held_out": len(held)})
    return held


def same_rows(lengths: Mapping[str, int]) -> int:
    """The number of rows that all have; 0 of nobody. Raises DataError (``data_lengths``)."""
    if len({*lengths.values()}) > 1:
        told = ", ".join(f"{role} {count}" for role, count in lengths.items())
        raise DataError(
            f"The parties have different numbers of rows: {told}.",
            hint="Row i is about the same person at every party.",
            code="data_lengths",
        )
    return next(iter(lengths.values()), 0)
