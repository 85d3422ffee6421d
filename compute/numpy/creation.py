"""Making arrays. Inside a trace these are constants; a filled array is carried as one number and broadcast."""

from typing import Any

import numpy as np

from coterie.compute.array import Array, ArrayLike, as_array, bind
from coterie.compute.primitives import rules
from coterie.compute.source import user_source
from coterie.errors import DTypeError

bool_ = np.dtype("bool")
uint8 = np.dtype("uint8")
int32 = np.dtype("int32")
int64 = np.dtype("int64")
float16 = np.dtype("float16")
float32 = np.dtype("float32")
float64 = np.dtype("float64")

Shape = int | tuple[int, ...] | list[int]


def asarray(x: ArrayLike, *, dtype: Any = None) -> Array:
    """An array of a number, nested lists, NumPy data or an array. Raises DTypeError for a dtype that coterie does not
    have.
    """
    return as_array(x, dtype)


def astype(x: ArrayLike, dtype: Any) -> Array:
    """Convert elementwise. Floats are cut off towards zero when made integers. Gradients pass between floats and stop
    at integers.
    """
    array = as_array(x)
    try:
        name = np.dtype(dtype).name
    except TypeError:
        raise DTypeError(
            f"{user_source()}: {dtype!r} is not a dtype.", hint='Pass a dtype such as "float32".'
        ) from None
    return rules.cast(array, name)


def full(shape: Shape, fill_value: float, *, dtype: Any = None) -> Array:
    """An array of one number."""
    return bind("broadcast_to", as_array(fill_value, dtype), shape=(shape,) if isinstance(shape, int) else tuple(shape))


def zeros(shape: Shape, *, dtype: Any = "float32") -> Array:
    """Zeros."""
    return full(shape, 0, dtype=dtype)


def ones(shape: Shape, *, dtype: Any = "float32") -> Array:
    """Ones."""
    return full(shape, 1, dtype=dtype)


def full_like(x: ArrayLike, fill_value: float, *, dtype: Any = None) -> Array:
    """An array of one number with the shape (and dtype) of another."""
    like = as_array(x)
    return full(like.shape, fill_value, dtype=like.dtype if dtype is None else dtype)


def zeros_like(x: ArrayLike, *, dtype: Any = None) -> Array:
    """Zeros with the shape (and dtype) of another array."""
    return full_like(x, 0, dtype=dtype)


def ones_like(x: ArrayLike, *, dtype: Any = None) -> Array:
    """Ones with the shape (and dtype) of another array."""
    return full_like(x, 1, dtype=dtype)


def arange(start: float, stop: float | None = None, step: float = 1, *, dtype: Any = None) -> Array:
    """Numbers from start (0 when only one bound is given) up to but without stop."""
    first, last = (0, start) if stop is None else (start, stop)
    kind = "float32" if any(isinstance(x, float) for x in (first, last, step)) else "int32"
    return Array(np.arange(first, last, step, dtype=np.dtype(dtype or kind)))


def eye(rows: int, columns: int | None = None, *, dtype: Any = "float32") -> Array:
    """Ones on the diagonal, zeros elsewhere."""
    return Array(np.eye(rows, columns, dtype=np.dtype(dtype)))


def tril(x: ArrayLike, *, k: int = 0) -> Array:
    """The matrix with zeros above diagonal k."""
    array = as_array(x)
    return bind("where", Array(np.tri(*array.shape[-2:], k=k, dtype=bool)), array, rules.number(0, array))


def triu(x: ArrayLike, *, k: int = 0) -> Array:
    """The matrix with zeros below diagonal k."""
    array = as_array(x)
    return bind("where", Array(np.tri(*array.shape[-2:], k=k - 1, dtype=bool)), rules.number(0, array), array)
