"""Python numbers, nested lists and foreign data as NumPy data of a dtype that coterie has."""

from typing import Any

import numpy as np

from coterie.compute.ir import DTYPES, NDArray
from coterie.compute.source import user_source
from coterie.errors import ArgumentTypeError, DTypeError, ShapeError

_DEFAULTS = {"f": "float32", "i": "int32"}


def literal(x: Any, dtype: Any = None) -> NDArray:
    """The data of anything array-like; see :func:`coterie.compute.array.as_array`. Raises ShapeError for lists of
    unequal lengths, DTypeError for integers that the dtype does not hold and for a dtype that coterie does not have.
    """
    try:
        data: NDArray = np.asarray(x)
    except ValueError as error:
        raise ShapeError(
            f"{user_source()}: {type(x).__name__} is no array: {str(error).partition('. ')[0]}.",
            hint="Give all lists of one level the same length.",
        ) from None
    except (RuntimeError, TypeError) as error:  # a tensor of another library that does not give its numbers
        raise ArgumentTypeError(
            f"{user_source()}: this {type(x).__name__} is no array: {str(error).partition('. ')[0]}.",
            hint="Make it a NumPy array first, e.g. tensor.detach().cpu().numpy().",
        ) from None
    ours = isinstance(x, float) or not hasattr(x, "__array__")
    wanted = _DEFAULTS.get(data.dtype.kind) if dtype is None and ours else dtype
    if wanted is not None:
        target = np.dtype(dtype_name(wanted))
        if ours and data.dtype.kind in "iu":
            _check_fits(data, target)
        with np.errstate(all="ignore"):
            data = data.astype(target)
    if data.dtype.name not in DTYPES:
        raise DTypeError(
            f"{user_source()}: {_told(x)} is no array: coterie has no arrays of dtype {data.dtype}.",
            hint=f"Convert to one of {', '.join(DTYPES)}.",
        )
    return data


def _told(x: Any) -> str:
    """What was given, in a word."""
    return repr(x) if x is None or isinstance(x, str | complex) else f"this {type(x).__name__}"


def dtype_name(dtype: Any) -> str:
    """The NumPy name of a dtype. Raises DTypeError for what is none."""
    try:
        return np.dtype(dtype).name
    except TypeError:
        raise DTypeError(
            f"{user_source()}: {dtype!r} is not a dtype.", hint='Pass a dtype such as "float32".'
        ) from None


def fits(x: float, dtype: str) -> bool:
    """Whether a Python number can stand for an element of a dtype: an integer that it holds, a float for floats."""
    kind = np.dtype(dtype).kind
    if kind in "iu" and isinstance(x, int):
        return np.iinfo(dtype).min <= x <= np.iinfo(dtype).max
    return kind == "f" or (kind == "b" and isinstance(x, bool))


def _check_fits(data: NDArray, dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "iu" or not data.size:
        return
    low, high = int(data.min()), int(data.max())
    if low < np.iinfo(dtype).min or high > np.iinfo(dtype).max:
        beyond = high if high > np.iinfo(dtype).max else low
        raise DTypeError(
            f"{user_source()}: {beyond} does not fit into {dtype.name}.",
            hint='Ask for a wider dtype, e.g. asarray(x, dtype="int64").',
        )
