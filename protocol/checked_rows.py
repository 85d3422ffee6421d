"""Rows that a schema has checked: a dict of arrays that remembers it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


class CheckedRows(dict[str, npt.NDArray[Any]]):
    """Features and label by name, as `coterie.protocol.schema.DataSchema.check` returns them. Text is a place in its
    vocabulary there, and a class its number, which a second check must not read as raw values again.

    schema: the digest of the schema that checked them.
    """

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]], schema: str) -> None:
        super().__init__(arrays)
        self.schema = schema

    def taken(self, rows: npt.ArrayLike) -> "CheckedRows":
        """Some of these rows, by their numbers or a mask. Raises IndexError for rows that are not there."""
        chosen = np.asarray(rows)
        return CheckedRows({name: array[chosen] for name, array in self.items()}, self.schema)
