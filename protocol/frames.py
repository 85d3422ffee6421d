"""Tables of pandas, polars and the like as columns by name, without loading any of them."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeGuard, cast

import numpy as np
import numpy.typing as npt

from coterie import errors


class Frame(Protocol):
    """What a DataFrame is here: named columns, each of which becomes an array."""

    @property
    def columns(self) -> Any:
        """The names, in order."""
        ...

    def __getitem__(self, name: Any, /) -> Any:
        """A column."""
        ...


def is_frame(value: object) -> TypeGuard[Frame]:
    """Whether it is such a table."""
    return not isinstance(value, Mapping | type) and all(
        hasattr(value, name) for name in ("columns", "__getitem__", "to_numpy")
    )


def columns_of(frame: Frame, source: str) -> dict[str, npt.NDArray[Any]]:
    """The columns as arrays, by name. The index is left out.

    source: what messages call it.
    Raises errors.DataError (``data_missing``) for two columns of one name.
    """
    names = [cast(object, name) for name in frame.columns]
    texts = [str(name) for name in names]
    twice = sorted({text for text in texts if texts.count(text) > 1})
    if twice:
        raise errors.DataError(
            f"{source}: two columns are named {twice[0]!r}.",
            hint="Rename one, or drop it.",
            code="data_missing",
            column=twice[0],
        )
    return {text: np.asarray(frame[name].to_numpy()) for text, name in zip(texts, names, strict=True)}


def as_columns(rows: Any, source: str) -> Any:
    """The columns of a table; anything else as it is."""
    return columns_of(rows, source) if is_frame(rows) else rows
