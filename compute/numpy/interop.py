"""NumPy's own functions on arrays: ``np.tanh(x)`` becomes ``tanh(x)``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from coterie.compute.array import Array
from coterie.compute.numpy import creation, elementwise, linear, manipulation, reduction
from coterie.compute.source import user_source
from coterie.errors import TraceError

_UFUNCS: dict[str, Callable[..., Array]] = {
    name: getattr(elementwise, name)
    for name in "add subtract multiply divide maximum minimum negative positive reciprocal square sign exp log sqrt tanh equal not_equal greater "
    "greater_equal less less_equal logical_and logical_or logical_not logical_xor".split()
}
_UFUNCS |= {"absolute": elementwise.abs, "power": elementwise.pow, "matmul": linear.matmul, "true_divide": elementwise.divide}

_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "sum": reduction.sum,
    "mean": reduction.mean,
    "var": reduction.var,
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
    "concatenate": lambda arrays, axis=0: manipulation.concat(arrays, axis=axis),
    "stack": lambda arrays, axis=0: manipulation.stack(arrays, axis=axis),
    "take": lambda x, indices, axis=0: manipulation.take(x, indices, axis=axis),
    "moveaxis": manipulation.moveaxis,
    "transpose": lambda x, axes=None: manipulation.permute_dims(x, axes if axes is not None else tuple(reversed(range(x.ndim)))),
    "where": elementwise.where,
    "clip": elementwise.clip,
    "zeros_like": creation.zeros_like,
    "ones_like": creation.ones_like,
    "full_like": creation.full_like,
    "tril": lambda x, k=0: creation.tril(x, k=k),
    "triu": lambda x, k=0: creation.triu(x, k=k),
    "tensordot": lambda a, b, axes=2: linear.tensordot(a, b, axes=axes),
    "outer": linear.outer,
}


def call_ufunc(ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> Array:
    """The array function that stands for a NumPy ufunc. Raises TraceError for one that coterie does not have, and for ``out=``."""
    function = _UFUNCS.get(ufunc.__name__)
    if function is None or method != "__call__" or options:
        _missing(f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}") + (f" with {', '.join(options)}" if options else ""))
    return function(*inputs)


def call_function(function: Callable[..., Any], positional: Sequence[Any], named: Mapping[str, Any]) -> Array:
    """The array function that stands for a NumPy function. Raises TraceError for one that coterie does not have."""
    ours = _FUNCTIONS.get(function.__name__)
    if ours is None:
        _missing(f"np.{function.__name__}")
    return ours(*positional, **named)


def _missing(name: str) -> Any:
    raise TraceError(
        f"{user_source()}: {name} does not work on arrays of coterie.", hint="Write it with the functions of coterie.compute.numpy, which can be traced."
    )
