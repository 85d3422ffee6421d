"""Making arrays. Inside a trace these are constants; a filled array is carried as one number and broadcast."""

from typing import Any

import numpy as np

from coterie.compute.array_type import Array, ArrayLike, as_array, bind, refuse
from coterie.compute.literals import dtype_name, literal
from coterie.compute.numpy.elementwise import where
from coterie.compute.primitives import rules
from coterie.compute.source import operation, user_source
from coterie.errors import InputError, ShapeError

bool_ = np.dtype("bool")
uint8 = np.dtype("uint8")
int8 = np.dtype("int8")
int16 = np.dtype("int16")
int32 = np.dtype("int32")
int64 = np.dtype("int64")
float16 = np.dtype("float16")
float32 = np.dtype("float32")
float64 = np.dtype("float64")

Shape = int | tuple[int, ...] | list[int]


Device = str | None


def _here(device: Device) -> None:
    if device not in (None, "cpu"):
        raise InputError(
            f"{user_source()}: arrays are made on the device 'cpu', not {device!r}.",
            hint="Leave device out; a compiled graph is moved to an accelerator by its execution provider.",
        )


def asarray(x: ArrayLike, *, dtype: Any = None, device: Device = None, copy: bool | None = None) -> Array:
    """An array of a number, nested lists, NumPy data or an array. Arrays are never written to, so a copy is made only
    when asked for. Raises DTypeError for a dtype that coterie does not have.
    """
    _here(device)
    if copy and isinstance(x, np.ndarray):
        return as_array(x.copy(), dtype)
    return as_array(x, dtype)


def from_dlpack(x: Any, *, device: Device = None, copy: bool | None = None) -> Array:
    """An array over the memory of another library's, on the CPU."""
    _here(device)
    return asarray(np.from_dlpack(x), copy=copy)


def astype(x: ArrayLike, dtype: Any, *, copy: bool = True, device: Device = None) -> Array:
    """Convert elementwise. Floats are cut off towards zero when made integers. Gradients pass between floats and stop
    at integers.
    """
    _here(device)
    return rules.cast(as_array(x), dtype_name(dtype))


@operation
def full(shape: Shape, fill_value: float, *, dtype: Any = None, device: Device = None) -> Array:
    """An array of one number."""
    _here(device)
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(size < 0 for size in sizes):
        refuse(ShapeError, "full", (), f"the shape {list(sizes)} has a negative size.", "Sizes are at least 0.")
    return bind("broadcast_to", as_array(fill_value, dtype), shape=sizes)


@operation
def zeros(shape: Shape, *, dtype: Any = None, device: Device = None) -> Array:
    """Zeros."""
    return full(shape, 0, dtype=dtype or float32, device=device)


@operation
def ones(shape: Shape, *, dtype: Any = None, device: Device = None) -> Array:
    """Ones."""
    return full(shape, 1, dtype=dtype or float32, device=device)


@operation
def empty(shape: Shape, *, dtype: Any = None, device: Device = None) -> Array:
    """Zeros: arrays are never written to, so nothing could fill an empty one."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: ArrayLike, fill_value: float, *, dtype: Any = None, device: Device = None) -> Array:
    """An array of one number with the shape (and dtype) of another."""
    like = as_array(x)
    return full(like.shape, fill_value, dtype=like.dtype if dtype is None else dtype, device=device)


def zeros_like(x: ArrayLike, *, dtype: Any = None, device: Device = None) -> Array:
    """Zeros with the shape (and dtype) of another array."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: ArrayLike, *, dtype: Any = None, device: Device = None) -> Array:
    """Ones with the shape (and dtype) of another array."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: ArrayLike, *, dtype: Any = None, device: Device = None) -> Array:
    """Zeros with the shape (and dtype) of another array."""
    return zeros_like(x, dtype=dtype, device=device)


def arange(
    start: float, stop: float | None = None, step: float = 1, *, dtype: Any = None, device: Device = None
) -> Array:
    """Numbers from start (0 when only one bound is given) up to but without stop. Raises InputError for a step of 0,
    DTypeError for integers that the dtype does not hold.
    """
    _here(device)
    first, last = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise InputError(f"{user_source()}: arange: a step of 0 never arrives.", hint="Give a step that is not 0.")
    name = dtype_name(dtype or ("float32" if any(isinstance(x, float) for x in (first, last, step)) else "int32"))
    if np.dtype(name).kind in "iu":
        literal([first, last - (1 if step > 0 else -1)] if (last - first) * step > 0 else [], name)  # that they fit
    return as_array(np.arange(first, last, step, dtype=name))


def _check_count(name: str, count: int) -> None:
    if count < 0:
        refuse(ShapeError, name, (), f"{count} is no number of elements.", "Give a count of at least 0.")


def linspace(
    start: float, stop: float, num: int, *, dtype: Any = None, device: Device = None, endpoint: bool = True
) -> Array:
    """``num`` numbers at equal distances from start to stop, the last one included unless ``endpoint`` is False."""
    _here(device)
    _check_count("linspace", num)
    return as_array(np.linspace(start, stop, num, endpoint=endpoint, dtype=dtype_name(dtype or "float32")))


def eye(n_rows: int, n_cols: int | None = None, *, k: int = 0, dtype: Any = None, device: Device = None) -> Array:
    """Ones on diagonal k, zeros elsewhere."""
    _here(device)
    _check_count("eye", n_rows)
    _check_count("eye", n_rows if n_cols is None else n_cols)
    return as_array(np.eye(n_rows, n_cols, k, dtype=dtype_name(dtype or "float32")))


def _triangle(name: str, x: ArrayLike, k: int) -> tuple[Array, Array]:
    array = as_array(x)
    if array.ndim < 2:
        refuse(ShapeError, name, (array,), "a triangle needs two axes.", "Reshape to a matrix first.")
    return Array(np.tri(*array.shape[-2:], k=k, dtype=bool)), array


def tril(x: ArrayLike, *, k: int = 0) -> Array:
    """The matrix with zeros above diagonal k."""
    below, array = _triangle("tril", x, k)
    return where(below, array, rules.number(0, array))


def triu(x: ArrayLike, *, k: int = 0) -> Array:
    """The matrix with zeros below diagonal k."""
    below, array = _triangle("triu", x, k - 1)
    return where(below, rules.number(0, array), array)
