"""What parties that grow trees send one another, in the frame of `coterie.aggregation.vertical.exchange`."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.exchange import ExchangeKind, ExchangePlace, unusable
from coterie.privacy.he import key_arrays

VERSION: Final = 1
"""Of the exchange. Another is refused."""
_ARRAYS: Final[Mapping[str, Mapping[str, tuple[str, int]]]] = {
    "opening": key_arrays.PUBLIC,
    "columns": {"bins": ("int32", 1), "missing": ("uint8", 1)},
    "gradients": {"rows": ("int32", 1), "ciphers": ("uint8", 2)},
    "own": {},
    "over": {},
    "histograms": {"ciphers": ("uint8", 2)},
    "splits": {"choice": ("int32", 2), "sides": ("uint8", 1)},
    "sides": {"sides": ("uint8", 1)},
    "others": {"sides": ("uint8", 1)},
    "bits": {"sides": ("uint8", 1)},
}
"""What is in a message of each kind: names, dtypes and how many axes."""
_KINDS: Final = {
    name: ExchangeKind("trees", VERSION, name, arrays, ("tree", "level")) for name, arrays in _ARRAYS.items()
}


def place_of(kind: str, tree: int = 0, level: int = 0) -> ExchangePlace:
    """The place of a message. tree, level: from 0, and 0 where a kind has none."""
    return ExchangePlace(_KINDS[kind], (tree, level))


def to_bits(sides: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Which rows go left, eight to a byte."""
    return np.packbits(sides)


def from_bits(bits: NDArray[Any], count: int, role: str, place: ExchangePlace) -> NDArray[np.bool_]:
    """``count`` rows of `to_bits`. Raises InputError (``session_values``) for another number of bytes."""
    if len(bits) != -(-count // 8):
        unusable(role, place, f"{len(bits)} bytes of sides for {count} rows")
    return np.unpackbits(bits, count=count).astype(np.bool_)
