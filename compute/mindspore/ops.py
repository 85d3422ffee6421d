"""``mindspore.ops``: functions, and the operators of the same names as objects (``ops.MatMul()(a, b)``)."""

from collections.abc import Callable, Sequence
from typing import Any

from coterie.compute import numpy as cnp
from coterie.compute import ops as core
from coterie.compute.array import Array, ArrayLike, as_array
from coterie.compute.mindspore.nn import losses
from coterie.compute.mindspore.parameter import Parameter
from coterie.compute.mindspore.tensor import giving_tensors, tensor
from coterie.compute.mindspore.transforms import GradOperation as GradOperation
from coterie.compute.mindspore.transforms import grad as grad
from coterie.compute.mindspore.transforms import value_and_grad as value_and_grad
from coterie.compute.mindspore.transforms import vmap as vmap

_Axes = int | Sequence[int] | None


def _matmul(transpose_a: bool = False, transpose_b: bool = False) -> Callable[[ArrayLike, ArrayLike], Array]:
    def product(a: ArrayLike, b: ArrayLike) -> Array:
        left = cnp.matrix_transpose(a) if transpose_a else a
        return tensor(cnp.matmul(left, cnp.matrix_transpose(b) if transpose_b else b))

    return product


def _reduction(fn: Callable[..., Array]) -> Callable[..., Array]:
    """With MindSpore's names of arguments."""

    def reduced(x: ArrayLike, axis: _Axes = None, keep_dims: bool = False) -> Array:
        return tensor(fn(x, axis=None if axis == () else axis, keepdims=keep_dims))

    return reduced


def _concat(tensors: Sequence[ArrayLike], axis: int = 0) -> Array:
    return cnp.concat(tensors, axis=axis)


def _stack(tensors: Sequence[ArrayLike], axis: int = 0) -> Array:
    return cnp.stack(tensors, axis=axis)


def _cast(x: ArrayLike, dtype: Any) -> Array:
    return cnp.astype(x, dtype)


def _one_hot(indices: ArrayLike, depth: int, on_value: float = 1.0, off_value: float = 0.0) -> Array:
    return core.one_hot(indices, depth) * (on_value - off_value) + off_value


def _gather(input_params: ArrayLike, input_indices: ArrayLike, axis: int) -> Array:
    return cnp.take(input_params, input_indices, axis=axis)


def _zeros(size: Any, dtype: Any = "float32") -> Array:
    return cnp.zeros(size, dtype=dtype)


def _ones(size: Any, dtype: Any = "float32") -> Array:
    return cnp.ones(size, dtype=dtype)


def _cross_entropy(input: ArrayLike, target: ArrayLike, ignore_index: int = -100, reduction: str = "mean") -> Any:
    return losses.CrossEntropyLoss(ignore_index, reduction).construct(as_array(input), as_array(target))


def _mse_loss(input: ArrayLike, target: ArrayLike, reduction: str = "mean") -> Any:
    return losses.MSELoss(reduction).construct(as_array(input), as_array(target))


def binary_cross_entropy_with_logits(
    logits: ArrayLike,
    label: ArrayLike,
    weight: ArrayLike | None = None,
    pos_weight: ArrayLike | None = None,
    reduction: str = "mean",
) -> Array:
    """weight (pos_weight label softplus(-logit) + (1 - label) softplus(logit)), joined as ``reduction`` says."""
    z = as_array(logits)
    y = cnp.astype(label, z.dtype)
    positive = y if pos_weight is None else y * pos_weight
    values = positive * core.softplus(-z) + (1.0 - y) * core.softplus(z)
    return tensor(losses.BCEWithLogitsLoss(reduction).joined(values if weight is None else values * weight))


def assign(variable: Parameter, value: Any) -> Parameter:
    """Write a Parameter."""
    return variable.set_data(value)


def depend(value: Any, expr: Any) -> Any:
    """``value``; what ``expr`` wrote is written in any case, in the order of the lines."""
    return value


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(cnp, name)
        for name in (
            "abs add argmax argmin broadcast_to equal exp expand_dims eye greater greater_equal less less_equal log "
            "logical_and logical_not logical_or matmul maximum minimum not_equal ones_like outer pow reciprocal "
            "reshape sign sqrt square squeeze tanh tril triu where zeros_like"
        ).split()
    },
    **{name: getattr(core, name) for name in "gelu log_softmax logsumexp relu sigmoid softmax stop_gradient".split()},
    "arange": cnp.arange,
    "cast": _cast,
    "cat": _concat,
    "clamp": cnp.clip,
    "clip_by_value": cnp.clip,
    "concat": _concat,
    "cross_entropy": _cross_entropy,
    "div": cnp.divide,
    "gather": _gather,
    "mse_loss": _mse_loss,
    "mul": cnp.multiply,
    "neg": cnp.negative,
    "one_hot": _one_hot,
    "ones": _ones,
    "permute": cnp.permute_dims,
    "stack": _stack,
    "sub": cnp.subtract,
    "transpose": cnp.permute_dims,
    "zeros": _zeros,
    "mean": _reduction(cnp.mean),
    "sum": _reduction(cnp.sum),
    "amax": _reduction(cnp.max),
    "amin": _reduction(cnp.min),
}

# Operators as objects: ops.Add() is a function of its operands.
_OPERATORS = {
    "Abs": "abs",
    "Add": "add",
    "Cast": "cast",
    "Div": "div",
    "Equal": "equal",
    "Exp": "exp",
    "ExpandDims": "expand_dims",
    "Gather": "gather",
    "Greater": "greater",
    "Less": "less",
    "Log": "log",
    "Maximum": "maximum",
    "Minimum": "minimum",
    "Mul": "mul",
    "Neg": "neg",
    "OnesLike": "ones_like",
    "Pow": "pow",
    "ReLU": "relu",
    "Reshape": "reshape",
    "Sigmoid": "sigmoid",
    "Sqrt": "sqrt",
    "Square": "square",
    "Sub": "sub",
    "Tanh": "tanh",
    "Transpose": "transpose",
    "ZerosLike": "zeros_like",
}


def _reduce(name: str) -> Callable[..., Any]:
    def operator(keep_dims: bool = False) -> Callable[..., Array]:
        def reduced(x: ArrayLike, axis: _Axes = None) -> Array:
            return _FUNCTIONS[name](x, axis, keep_dims)

        return reduced

    return operator


def _softmax(axis: int = -1) -> Callable[[ArrayLike], Array]:
    return lambda x: tensor(core.softmax(x, axis))


def _concat_along(axis: int = 0) -> Callable[[Sequence[ArrayLike]], Array]:
    return lambda tensors: tensor(_concat(tensors, axis))


_WITH_OPTIONS: dict[str, Callable[..., Any]] = {
    "MatMul": _matmul,
    "BatchMatMul": _matmul,
    "ReduceMean": _reduce("mean"),
    "ReduceSum": _reduce("sum"),
    "Softmax": _softmax,
    "Concat": _concat_along,
}


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return giving_tensors(_FUNCTIONS[name])
    if name in _WITH_OPTIONS:
        return _WITH_OPTIONS[name]
    if name in _OPERATORS:
        function = giving_tensors(_FUNCTIONS[_OPERATORS[name]])
        return lambda: function
    raise AttributeError(f"coterie.compute.mindspore.ops has no {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FUNCTIONS, *_OPERATORS, *_WITH_OPTIONS})
