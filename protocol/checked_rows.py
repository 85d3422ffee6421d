"""Rows that a schema has checked: a dict of arrays that remembers it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


class CheckedRows(dict[str, npt.NDArray[Any]]):
    """Features and label by name, as `coterie.protocol.schema.DataSchema.check` returns them. Text is a place in its
    vocabulary there, and a class its number, which a second check must not read as raw values again.

    schema: the digest of the schema that checked them.
    read: how many rows there were before those of other classes were dropped; None for as many as there are.
    """

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]], schema: str, *, read: int | None = None) -> None:
        super().__init__(arrays)
        self.schema = schema
        self.read = len(next(iter(self.values()), ())) if read is None else read

    def select(self, rows: npt.ArrayLike) -> "CheckedRows":
        """Some of these rows, by their numbers or a mask. Raises IndexError for rows that are not there."""
        chosen = np.asarray(rows)
        return CheckedRows({name: array[chosen] for name, array in self.items()}, self.schema)
