"""What an object holds, as a value that tells whether it was changed in place."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, cast

import numpy as np

_DEPTH = 6


def contents(value: object, depth: int = _DEPTH) -> Any:
    """Equal before and after where nothing in it was changed: numbers and texts by value, arrays by their bytes, what
    lists, sets, dictionaries and plain objects hold one by one, everything else by which object it is.
    """
    if isinstance(value, (bool, int, float, str, bytes)) or value is None:
        return type(value), repr(value)
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        told = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
        return array.shape, array.dtype.str, blake2b(told).digest()
    if not depth:
        return id(value)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return id(cast(object, value)), tuple(
            (contents(key, depth - 1), contents(each, depth - 1)) for key, each in pairs
        )
    if isinstance(value, (list, tuple, set, frozenset)):
        items = cast("list[Any]", value)
        return id(items), tuple(contents(each, depth - 1) for each in items)
    if type(value).__module__.partition(".")[0] not in _LIBRARIES and hasattr(value, "__dict__"):
        return id(value), tuple((name, contents(each, depth - 1)) for name, each in vars(value).items())
    return id(value)


# Of objects of these, how they keep themselves is not what a user changes.
_LIBRARIES = ("builtins", "collections", "coterie", "functools", "numpy", "threading", "types")
