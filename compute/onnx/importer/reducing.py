"""Reductions, products, and normalisation by what is reduced."""

from collections.abc import Callable
from typing import Any

import numpy as np

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.onnx.importer.operation import Operation, Rule, pointwise


def _reduction(fn: Callable[..., Array]) -> Rule:
    def reduced(node: Operation) -> Array:
        axes = node.integers(1, "axes")
        if not axes and node.option("noop_with_empty_axes", 0):
            return node[0]
        return fn(node[0], axis=axes or None, keepdims=bool(node.option("keepdims", 1)))

    return reduced


def _l1(x: Array, **how: Any) -> Array:
    return cnp.sum(cnp.abs(x), **how)


def _squares(x: Array, **how: Any) -> Array:
    return cnp.sum(x * x, **how)


def _l2(x: Array, **how: Any) -> Array:
    return cnp.sqrt(_squares(x, **how))


def _log_sum(x: Array, **how: Any) -> Array:
    return cnp.log(cnp.sum(x, **how))


def _log_sum_exp(x: Array, axis: Any, keepdims: bool) -> Array:
    top = ops.stop_gradient(cnp.max(x, axis=axis, keepdims=True))
    total = cnp.log(cnp.sum(cnp.exp(x - top), axis=axis, keepdims=True)) + top
    return total if keepdims else cnp.sum(total, axis=axis)


def _position(fn: Callable[..., Array]) -> Rule:
    def found(node: Operation) -> Array:
        if node.option("select_last_index", 0):
            node.refuse("it takes the last of equal elements", "Only the first is translated.")
        keep = bool(node.option("keepdims", 1))
        return cnp.astype(fn(node[0], axis=node.option("axis", 0), keepdims=keep), "int64")

    return found


def _gemm(node: Operation) -> Array:
    if node[0].ndim != 2 or node[1].ndim != 2:
        node.refuse(f"it multiplies arrays of {node[0].ndim} and {node[1].ndim} axes", "Give rows: [N, features].")
    a = cnp.matrix_transpose(node[0]) if node.option("transA", 0) else node[0]
    b = cnp.matrix_transpose(node[1]) if node.option("transB", 0) else node[1]
    alpha, beta = node.option("alpha", 1.0), node.option("beta", 1.0)
    y = a @ b if alpha == 1.0 else alpha * (a @ b)
    c = node.get(2)
    return y if c is None or beta == 0.0 else y + (c if beta == 1.0 else beta * c)


def _einsum(node: Operation) -> Array:
    return cnp.einsum(node.attributes["equation"], *(node[index] for index in range(len(node.inputs))))


def _running_sum(node: Operation) -> Array:
    x, axis = node[0], int(np.asarray(node.known(1)).item())
    if not -x.ndim <= axis < x.ndim:
        node.refuse(f"axis {axis} does not exist in {x.ndim} axes", "The file is damaged: export it again.")
    if node.option("reverse", 0):
        x = cnp.flip(x, axis=axis)
    sums = cnp.cumulative_sum(x, axis=axis)
    if node.option("exclusive", 0) and x.shape[axis]:  # without the element itself: one place later, and 0 at first
        place = axis % x.ndim
        widths = [(1, 0) if index == place else (0, 0) for index in range(x.ndim)]
        kept = tuple(slice(0, n - 1 if index == place else n) for index, n in enumerate(x.shape))
        sums = cnp.pad(sums[kept], widths)
    return cnp.flip(sums, axis=axis) if node.option("reverse", 0) else sums


def _centred(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centred = x - cnp.mean(x, axis=axes, keepdims=True)
    return centred / cnp.sqrt(cnp.mean(centred * centred, axis=axes, keepdims=True) + epsilon)


def _layer_normalisation(node: Operation) -> Array:
    if node.outputs > 1:
        node.refuse("its mean or deviation is used", "Only its first output is translated.")
    x, bias = node[0], node.get(2)
    axis = node.option("axis", -1)
    if not -x.ndim <= axis < x.ndim:
        node.refuse(f"axis {axis} does not exist in {x.ndim} axes", "The file is damaged: export it again.")
    axis %= x.ndim
    y = _centred(x, tuple(range(axis, x.ndim)), node.option("epsilon", 1e-5)) * node[1]
    return y if bias is None else y + bias


def _by_channel(x: Array, values: Array) -> Array:
    return cnp.reshape(values, (-1, *(1,) * (x.ndim - 2)))


def _instance_normalisation(node: Operation) -> Array:
    x = node[0]
    y = _centred(x, tuple(range(2, x.ndim)), node.option("epsilon", 1e-5))
    return y * _by_channel(x, node[1]) + _by_channel(x, node[2])


def _group_normalisation(node: Operation) -> Array:
    x, groups = node[0], int(node.attributes["num_groups"])
    channels = x.shape[1] if x.ndim > 2 else 0
    if groups < 1 or not channels or channels % groups:
        node.refuse(f"{channels} channels are not {groups} groups", "The file is damaged: export it again.")
    grouped = cnp.reshape(x, (x.shape[0], groups, channels // groups, *x.shape[2:]))
    y = _centred(grouped, tuple(range(2, grouped.ndim)), node.option("epsilon", 1e-5))
    return cnp.reshape(y, x.shape) * _by_channel(x, node[1]) + _by_channel(x, node[2])


def _unit_length(node: Operation) -> Array:
    x, axis = node[0], int(node.option("axis", -1))
    size = (_l2 if node.option("p", 2) == 2 else _l1)(x, axis=axis, keepdims=True)
    return x / cnp.where(size == 0, cnp.ones_like(size), size)  # what is all zeros stays so


def _batch_normalisation(node: Operation) -> Array:
    if node.option("training_mode", 0) or node.outputs > 1:
        node.refuse("it is in training mode", "Export the model in evaluation mode.")
    x, given = node[0], (node[1], node[2], node[3], node[4])
    epsilon = node.option("epsilon", 1e-5)
    if node.batch_norm is not None:
        by_batch = node.batch_norm(x, given, epsilon, node.option("momentum", 0.9))
        if by_batch is not None:
            return by_batch
    scale, bias, mean, variance = (_by_channel(x, values) for values in given)
    return (x - mean) * (scale / cnp.sqrt(variance + epsilon)) + bias


RULES: dict[str, Rule] = {
    "ArgMax": _position(cnp.argmax),
    "ArgMin": _position(cnp.argmin),
    "BatchNormalization": _batch_normalisation,
    "CumSum": _running_sum,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "GroupNormalization": _group_normalisation,
    "InstanceNormalization": _instance_normalisation,
    "LayerNormalization": _layer_normalisation,
    "LpNormalization": _unit_length,
    "LogSoftmax": lambda node: ops.log_softmax(node[0], axis=node.option("axis", -1)),
    "MatMul": pointwise(cnp.matmul),
    "ReduceL1": _reduction(_l1),
    "ReduceL2": _reduction(_l2),
    "ReduceLogSum": _reduction(_log_sum),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ReduceMax": _reduction(cnp.max),
    "ReduceMean": _reduction(cnp.mean),
    "ReduceMin": _reduction(cnp.min),
    "ReduceProd": _reduction(cnp.prod),
    "ReduceSum": _reduction(cnp.sum),
    "ReduceSumSquare": _reduction(_squares),
    "Softmax": lambda node: ops.softmax(node[0], axis=node.option("axis", -1)),
}
