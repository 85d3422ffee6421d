"""A table of a run for pandas, which is loaded only when somebody asks for it."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from coterie.errors import ConfigurationError


def dataframe(columns: Sequence[str], rows: Sequence[Sequence[object]], index: str) -> Any:
    """A pandas DataFrame of these rows, by the index column. Raises ConfigurationError (``extra_missing``)."""
    try:
        pandas: Any = import_module("pandas")
    except ImportError as error:
        raise ConfigurationError(
            "History.to_dataframe() needs pandas.",
            hint="pip install pandas; or use history.to_csv() or history.to_dicts(), which need no extra package.",
            code="extra_missing",
        ) from error
    return pandas.DataFrame(list(rows), columns=list(columns)).set_index(index)
