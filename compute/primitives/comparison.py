"""Comparisons, which have no gradient, and the choice between two arrays by a mask."""

from collections.abc import Sequence

import numpy as np

from coterie.compute.array_type import Array
from coterie.compute.ir import NDArray, Node, Type
from coterie.compute.primitives import batch, facts, rules
from coterie.compute.primitives.basic import ONNX_DTYPES
from coterie.compute.primitives.row import Call, Emitter, no_gradient, operator, per_input, single
from coterie.errors import DTypeError


def _compare_infer(a: Type, b: Type) -> Type:
    rules.same_dtype(a, b)
    return Type("bool", rules.broadcast_shapes(a, b))


def _greater_infer(a: Type, b: Type) -> Type:
    if a.dtype == "bool":
        raise DTypeError("bool has no order.", hint='Convert it with astype(x, "int32").')
    return _compare_infer(a, b)


def _where_infer(condition: Type, a: Type, b: Type) -> Type:
    if condition.dtype != "bool":
        raise DTypeError("the condition must be bool.", hint="Compare first: where(x > 0, a, b).")
    return Type(rules.same_dtype(a, b), rules.broadcast_shapes(condition, a, b))


def _where(condition: NDArray, a: NDArray, b: NDArray) -> NDArray:
    return np.where(condition, a, b)


def _where_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    if node.output.type.dtype != "bool":
        return emit.op("Where", *names)
    # The choice between masks, which the CPU lacks, is made of numbers.
    a, b = (emit.op("Cast", name, to=ONNX_DTYPES["float32"]) for name in names[1:])
    return emit.op("Cast", emit.op("Where", names[0], a, b), to=ONNX_DTYPES["bool"])


def _chosen(call: Call, g: Array) -> Array:
    return rules.unbroadcast(g * rules.cast(call.inputs[0], g.type.dtype), call.inputs[1].shape)


def _not_chosen(call: Call, g: Array) -> Array:
    return rules.unbroadcast(g * (1.0 - rules.cast(call.inputs[0], g.type.dtype)), call.inputs[2].shape)


ROWS = (
    single(
        name="equal",
        infer=_compare_infer,
        evaluate=np.equal,
        gradient=no_gradient,
        batch=batch.elementwise,
        lower=operator("Equal"),
        facts=facts.elementwise(zero="no", monotone=False, nonnegative=False, half="follows", rounds=True),
    ),
    single(
        name="greater",
        infer=_greater_infer,
        evaluate=np.greater,
        gradient=no_gradient,
        batch=batch.elementwise,
        lower=operator("Greater"),
        facts=facts.elementwise(zero="no", monotone=False, nonnegative=False, half="follows", rounds=True),
    ),
    single(
        name="where",
        infer=_where_infer,
        evaluate=_where,
        gradient=per_input(None, _chosen, _not_chosen),
        batch=batch.elementwise,
        lower=_where_lower,
        facts=facts.elementwise(zero="no", monotone=False, nonnegative=False, half="follows", rounds=True),
    ),
)
