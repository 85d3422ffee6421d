"""What parties that fit a linear model send one another, in the frame of `coterie.aggregation.vertical.exchange`."""

from collections.abc import Mapping
from typing import Final

from coterie.aggregation.vertical.exchange import ExchangeKind, ExchangePlace
from coterie.privacy.he import key_arrays

VERSION: Final = 1
"""Of the exchange. Another is refused."""
_ARRAYS: Final[Mapping[str, Mapping[str, tuple[str, int]]]] = {
    "opening": {**key_arrays.PUBLIC, "rows": ("int32", 1), "columns": ("int32", 1), "curvature": ("float64", 1)},
    "columns": {"count": ("int32", 1)},
    "residuals": {"ciphers": ("uint8", 2)},
    "sums": {"own": ("uint8", 2), "masked": ("uint8", 2)},
    "opened": {"sums": ("uint8", 2)},
    "scores": {"scores": ("float64", 1)},
}
"""What is in a message of each kind: names, dtypes and how many axes."""
_KINDS: Final = {
    name: ExchangeKind("linear", VERSION, name, arrays, ("step", "part")) for name, arrays in _ARRAYS.items()
}


def place_of(kind: str, step: int = 0, part: int = 0) -> ExchangePlace:
    """The place of a message. step, part: from 0, and 0 where a kind has none."""
    return ExchangePlace(_KINDS[kind], (step, part))
