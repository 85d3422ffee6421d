"""NumPy's own functions on arrays: ``np.tanh(x)`` becomes ``tanh(x)``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from coterie.compute.array_type import Array, as_array
from coterie.compute.ir import NDArray
from coterie.compute.numpy import (
    contraction,
    creation,
    cumulative,
    elementary,
    elementwise,
    linear,
    manipulation,
    ordering,
    reduction,
    rounding,
)
from coterie.compute.numpy.absent import ABSENT
from coterie.compute.source import user_source
from coterie.errors import TraceError


def _concatenate(arrays: Sequence[Any], axis: int | None = 0) -> Array:
    return manipulation.concat(arrays, axis=axis)


def _stack(arrays: Sequence[Any], axis: int = 0) -> Array:
    return manipulation.stack(arrays, axis=axis)


def _take(x: Any, indices: Any, axis: int | None = None) -> Array:
    if axis is None:
        return manipulation.take(manipulation.reshape(x, -1), indices, axis=0)
    return manipulation.take(x, indices, axis=axis)


def _transpose(x: Any, axes: Sequence[int] | None = None) -> Array:
    array = as_array(x)
    return manipulation.permute_dims(array, tuple(reversed(range(array.ndim))) if axes is None else axes)


def _tril(x: Any, k: int = 0) -> Array:
    return creation.tril(x, k=k)


def _triu(x: Any, k: int = 0) -> Array:
    return creation.triu(x, k=k)


def _tensordot(a: Any, b: Any, axes: int = 2) -> Array:
    return linear.tensordot(a, b, axes=axes)


def _tile(x: Any, reps: int | Sequence[int]) -> Array:
    return manipulation.tile(x, reps)


def _flip(m: Any, axis: int | Sequence[int] | None = None) -> Array:
    return manipulation.flip(m, axis=axis)


def _roll(a: Any, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Array:
    return manipulation.roll(a, shift, axis=axis)


def _repeat(a: Any, repeats: Any, axis: int | None = None) -> Array:
    return manipulation.repeat(a, repeats, axis=axis)


def _cumsum(a: Any, axis: int | None = None, dtype: Any = None) -> Array:
    flat, place = (manipulation.reshape(a, -1), 0) if axis is None else (a, axis)
    return cumulative.cumulative_sum(flat, axis=place, dtype=dtype)


def _cumprod(a: Any, axis: int | None = None, dtype: Any = None) -> Array:
    flat, place = (manipulation.reshape(a, -1), 0) if axis is None else (a, axis)
    return cumulative.cumulative_prod(flat, axis=place, dtype=dtype)


def _diff(a: Any, n: int = 1, axis: int = -1) -> Array:
    return cumulative.diff(a, n=n, axis=axis)


def _var(a: Any, axis: reduction.Axis = None, ddof: float = 0.0, keepdims: bool = False) -> Array:
    return reduction.var(a, axis, keepdims, correction=ddof)


def _std(a: Any, axis: reduction.Axis = None, ddof: float = 0.0, keepdims: bool = False) -> Array:
    return reduction.std(a, axis, keepdims, correction=ddof)


def _sort(a: Any, axis: int = -1, kind: Any = None, stable: Any = None) -> Array:
    return ordering.sort(a, axis=axis)


def _argsort(a: Any, axis: int = -1, kind: Any = None, stable: Any = None) -> Array:
    return ordering.argsort(a, axis=axis)


def _take_along_axis(arr: Any, indices: Any, axis: int = -1) -> Array:
    return ordering.take_along_axis(arr, indices, axis=axis)


def _ravel(a: Any) -> Array:
    return manipulation.reshape(a, -1)


def _round(a: Any, decimals: int = 0) -> Array:
    return rounding.round(a) if decimals == 0 else rounding.round(a * 10.0**decimals) * 10.0**-decimals


def _dot(a: Any, b: Any) -> Array:
    left, right = as_array(a), as_array(b)
    if not left.shape or not right.shape:
        return elementwise.multiply(left, right)
    return linear.tensordot(left, right, axes=((-1,), (max(right.ndim - 2, 0),)))


def _split(ary: Any, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    if isinstance(indices_or_sections, int):
        return manipulation.split(ary, indices_or_sections, axis=axis)
    ends = [*indices_or_sections, as_array(ary).shape[axis]]
    return manipulation.split(ary, [end - start for start, end in zip([0, *ends], ends, strict=False)], axis=axis)


_SAME_NAME = (
    "add subtract multiply divide maximum minimum negative positive reciprocal square sign exp log sqrt tanh "
    "equal not_equal greater greater_equal less "
    "less_equal logical_and logical_or logical_not logical_xor isnan isinf isfinite signbit copysign"
).split()
_ELEMENTARY = "sin cos tan sinh cosh log1p log2 log10 logaddexp expm1 hypot".split()
_ROUNDING = "floor ceil trunc floor_divide remainder".split()
_UFUNCS: dict[str, Callable[..., Array]] = {
    **{name: getattr(elementwise, name) for name in _SAME_NAME},
    **{name: getattr(elementary, name) for name in _ELEMENTARY},
    **{f"arc{name}": getattr(elementary, f"a{name}") for name in ("sin", "cos", "tan", "tan2", "sinh", "cosh", "tanh")},
    **{name: getattr(rounding, name) for name in _ROUNDING},
    "rint": rounding.round,
    "absolute": elementwise.abs,
    "power": elementary.pow,
    "matmul": linear.matmul,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": reduction.sum,
    "mean": reduction.mean,
    "var": _var,
    "std": _std,
    "prod": reduction.prod,
    "count_nonzero": reduction.count_nonzero,
    "cumsum": _cumsum,
    "cumprod": _cumprod,
    "diff": _diff,
    "sort": _sort,
    "argsort": _argsort,
    "searchsorted": ordering.searchsorted,
    "take_along_axis": _take_along_axis,
    "einsum": contraction.einsum,
    "dot": _dot,
    "ravel": _ravel,
    "round": _round,
    "split": _split,
    "max": reduction.max,
    "amax": reduction.max,
    "min": reduction.min,
    "amin": reduction.min,
    "argmax": reduction.argmax,
    "argmin": reduction.argmin,
    "any": reduction.any,
    "all": reduction.all,
    "reshape": manipulation.reshape,
    "expand_dims": manipulation.expand_dims,
    "squeeze": manipulation.squeeze,
    "broadcast_to": manipulation.broadcast_to,
    "concatenate": _concatenate,
    "stack": _stack,
    "take": _take,
    "moveaxis": manipulation.moveaxis,
    "swapaxes": manipulation.swapaxes,
    "flip": _flip,
    "roll": _roll,
    "repeat": _repeat,
    "tile": _tile,
    "broadcast_arrays": manipulation.broadcast_arrays,
    "meshgrid": manipulation.meshgrid,
    "transpose": _transpose,
    "where": elementwise.where,
    "clip": elementwise.clip,
    "zeros_like": creation.zeros_like,
    "ones_like": creation.ones_like,
    "full_like": creation.full_like,
    "tril": _tril,
    "triu": _triu,
    "tensordot": _tensordot,
    "outer": linear.outer,
}


def export(data: NDArray, stream: Any, max_version: tuple[int, int] | None, device: Any, copy: bool | None) -> Any:
    """The DLPack capsule of an array's data."""
    if copy is not False and not data.flags.writeable and (max_version is None or max_version < (1, 0)):
        data = data.copy()  # consumers of DLPack before 1.0 cannot be told that they must not write
    return data.__dlpack__(stream=stream, max_version=max_version, dl_device=device, copy=copy)


def call_ufunc(ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> Array:
    """The array function that stands for a NumPy ufunc. Raises TraceError for one that coterie does not have, and for
    ``out=``.
    """
    function = _UFUNCS.get(ufunc.__name__)
    if function is None or method != "__call__" or options:
        _missing(
            f"np.{ufunc.__name__}"
            + ("" if method == "__call__" else f".{method}")
            + (f" with {', '.join(options)}" if options else "")
        )
    return function(*inputs)


def call_function(function: Callable[..., Any], positional: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """The array function that stands for a NumPy function. Raises TraceError for one that coterie does not have."""
    ours = _FUNCTIONS.get(function.__name__)
    if ours is None:
        _missing(f"np.{function.__name__}")
    return ours(*positional, **named)


def _missing(name: str) -> NoReturn:
    known = ABSENT.get(name.removeprefix("np."))
    why, instead = known or ("", "write it with the functions of coterie.compute.numpy, which can be traced")
    raise TraceError(
        f"{user_source()}: {name} does not work on arrays of coterie" + (f": {why}." if why else "."),
        hint=f"{instead[0].upper()}{instead[1:]}.",
    )
