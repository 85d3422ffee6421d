"""Sums and maxima over axes."""

from collections.abc import Sequence

import numpy as np

from coterie.compute.array_type import Array
from coterie.compute.ir import NDArray, Node, Type
from coterie.compute.primitives import batch, facts, rules
from coterie.compute.primitives.row import Call, Emitter, Lower, per_input, single
from coterie.errors import DTypeError, ShapeError

Axes = tuple[int, ...]


def _infer(x: Type, *, axes: Axes, keepdims: bool) -> Type:
    if x.dtype == "bool":
        raise DTypeError("reduction of bool.", hint='Convert it with astype(x, "int32").')
    if len(set(axes)) != len(axes) or any(not 0 <= axis < x.rank for axis in axes):
        raise ShapeError(f"{list(axes)} are not axes of {x}.", hint=f"Name axes between 0 and {x.rank - 1}, each once.")
    return Type(x.dtype, _kept(x.shape, axes) if keepdims else tuple(n for i, n in enumerate(x.shape) if i not in axes))


def _max_infer(x: Type, *, axes: Axes, keepdims: bool) -> Type:
    if any(0 <= axis < x.rank and x.shape[axis] == 0 for axis in axes):
        raise ShapeError("the maximum of nothing.", hint="Reduce over axes that are not empty.")
    return _infer(x, axes=axes, keepdims=keepdims)


def _kept(shape: tuple[int, ...], axes: Axes) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _sum(x: NDArray, *, axes: Axes, keepdims: bool) -> NDArray:
    return np.sum(x, axis=axes, keepdims=keepdims, dtype=x.dtype)


def _max(x: NDArray, *, axes: Axes, keepdims: bool) -> NDArray:
    return np.max(x, axis=axes, keepdims=keepdims)


def _sum_gradient(call: Call, g: Array) -> Array:
    shape = call.inputs[0].shape
    return rules.broadcast_to(rules.reshape(g, _kept(shape, call.attributes["axes"])), shape)


def _max_gradient(call: Call, g: Array) -> Array:
    """To the greatest element; in equal parts where several are."""
    x, axes = call.inputs[0], call.attributes["axes"]
    kept = _kept(x.shape, axes)
    mask = rules.equal_mask(x, rules.reshape(call.output, kept), x.type.dtype)
    return mask * (rules.reshape(g, kept) / rules.sum_over(mask, axes, keepdims=True))


def _lower(onnx: str) -> Lower:
    def lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
        x, axes, keepdims = node.inputs[0].type, node.attributes["axes"], node.attributes["keepdims"]
        name = names[0]
        if not axes:
            return name
        if not node.output.type.shape:  # to rank 0, carried as [1]: reduce a flat view
            name = name if x.rank == 1 else emit.op("Reshape", name, emit.integers([x.size]))
            axes, keepdims = (0,), True
        if onnx == "ReduceSum":  # an operand since opset 13; ReduceMax has it as an attribute until opset 18
            return emit.op(onnx, name, emit.integers(axes), keepdims=int(keepdims))
        return emit.op(onnx, name, axes=list(axes), keepdims=int(keepdims))

    return lower


ROWS = (
    single(
        name="sum",
        infer=_infer,
        evaluate=_sum,
        gradient=per_input(_sum_gradient),
        batch=batch.shifted("axes"),
        lower=_lower("ReduceSum"),
        facts=facts.computing(
            category="tensor",
            flops=facts.read,
            cheap=False,
            zero="all",
            nonnegative=False,
            half="single",
            derivative=False,
        ),
    ),
    single(
        name="max",
        infer=_max_infer,
        evaluate=_max,
        gradient=per_input(_max_gradient),
        batch=batch.shifted("axes"),
        lower=_lower("ReduceMax"),
        facts=facts.computing(
            category="tensor",
            flops=facts.read,
            cheap=False,
            zero="all",
            nonnegative=False,
            half="follows",
            derivative=False,
        ),
    ),
)
