"""Names that people who come from NumPy, PyTorch, JAX or MindSpore try first, and what to write here."""

from collections.abc import Mapping
from importlib import import_module
from typing import NoReturn

_RANDOM = "numpy.random outside of the function, with its numbers as an argument: graphs draw none"
_DEPENDS = "sort, or ids prepared on the host: the shape of the result would depend on data, and shapes are static"

_FUNCTIONS = {
    "abs(x)": "absolute fabs",
    "asarray(x)": "array asanyarray ascontiguousarray tensor from_numpy",
    "bitwise_invert(x)": "invert",
    "concat([x, y], axis=0)": "append cat concatenate dstack hstack vstack",
    "coterie.compute.ops": "gelu log_softmax logsumexp one_hot relu scatter_add sigmoid softmax softplus top_k",
    "cumulative_prod(x, axis=0)": "cumprod",
    "cumulative_sum(x, axis=0)": "cumsum",
    "divide(x, y), or x / y": "div true_divide",
    "expand_dims(x, axis)": "unsqueeze",
    "eye(n)": "identity",
    "max(x)": "amax",
    "min(x)": "amin",
    "numpy.testing on x.numpy(), or abs(x - y) < tolerance": "allclose array_equal isclose",
    "permute_dims(x, axes), or x.T": "permute transpose",
    "pow(x, y), or x ** y": "float_power power",
    "remainder(x, y)": "fmod mod",
    "reshape(x, -1)": "flatten ravel",
    "sqrt(sum(x * x))": "norm",
    "where(x != x, 0.0, x)": "nan_to_num",
    "x @ y, or vecdot(x, y)": "bmm dot inner mm",
    "atan2(y, x)": "arctan2",
    **{f"a{name}(x)": f"arc{name}" for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")},
    _DEPENDS: "argwhere compress extract flatnonzero unique",
    _RANDOM: "rand randn random",
}
_METHODS = {
    "coterie.compute.grad(f)(x), or coterie.compute.tape": "backward grad",
    "coterie.compute.ops.stop_gradient(x)": "detach",
    "the array itself: it is never written to": "clone contiguous copy",
    "where, concat or scatter_add, which make new arrays": "add_ at fill itemset mul_ put set sub_ zero_",
    "x.T, or permute_dims(x, axes)": "permute t transpose",
    'x.astype("float32")': "double float half int long to type type_as",
    "x.ndim": "dim",
    "x.numpy(), outside of a traced function": "asnumpy cpu data tobytes tolist",
    "x.reshape(shape)": "flatten ravel resize view",
}


def _by_name(table: Mapping[str, str]) -> dict[str, str]:
    return {name: instead for instead, names in table.items() for name in names.split()}


FUNCTIONS = _by_name(_FUNCTIONS)
METHODS = FUNCTIONS | _by_name(_METHODS)


def refuse_function(name: str) -> NoReturn:
    """Raise AttributeError for a function that is not in the namespace, and tell what to write instead."""
    _refuse("module 'coterie.compute.numpy'", name, FUNCTIONS.get(name))


def refuse_method(name: str) -> NoReturn:
    """Raise AttributeError for a method that arrays do not have, and tell what to write instead."""
    ours = callable(getattr(import_module("coterie.compute.numpy"), "__dict__", {}).get(name))
    _refuse("an Array", name, METHODS.get(name, f"coterie.compute.numpy.{name}(x)" if ours else None))


def _refuse(what: str, name: str, instead: str | None) -> NoReturn:
    told = f". Its names are those of the array API standard: use {instead}." if instead else ""
    raise AttributeError(f"{what} has no attribute {name!r}{told}", name=name)
