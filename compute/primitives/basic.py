"""Constants, conversion, and the barrier of gradients."""

from collections.abc import Sequence

import numpy as np

from coterie.compute.array_type import Array
from coterie.compute.ir import DTYPES, NDArray, Node, Type
from coterie.compute.primitives import batch, facts, rules
from coterie.compute.primitives.row import Call, Emitter, no_gradient, per_input, single
from coterie.errors import DTypeError

# The codes of onnx.TensorProto, written out so that evaluating an array does not import onnx. A public, frozen part of
# the ONNX format.
ONNX_DTYPES = {
    "bool": 9,
    "uint8": 2,
    "int8": 3,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "float16": 10,
    "float32": 1,
    "float64": 11,
}


def _constant_infer(*, value: NDArray) -> Type:
    return Type(value.dtype.name, value.shape)


def _constant(*, value: NDArray) -> NDArray:
    return value


def _constant_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    value = node.attributes["value"]
    return emit.constant(value.reshape(rules.carried(value.shape)))


def _astype_infer(x: Type, *, dtype: str) -> Type:
    if dtype not in DTYPES:
        raise DTypeError(f"{dtype!r} is not a dtype of coterie.", hint=f"Choose one of {', '.join(DTYPES)}.")
    return Type(dtype, x.shape)


def _astype(x: NDArray, *, dtype: str) -> NDArray:
    return x.astype(dtype)


def _astype_gradient(call: Call, g: Array) -> Array:
    return rules.cast(g, call.inputs[0].type.dtype)


def _astype_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    return emit.op("Cast", names[0], to=ONNX_DTYPES[node.attributes["dtype"]])


def _identity_infer(x: Type) -> Type:
    return x


def _identity_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    return names[0]


def _barrier_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    # A Reshape to the same shape copies nothing, and no runtime takes its result for its operand.
    return emit.op("Reshape", names[0], emit.integers(rules.carried(node.output.type.shape)))


ROWS = (
    single(
        name="constant",
        infer=_constant_infer,
        evaluate=_constant,
        gradient=no_gradient,
        batch=batch.unary,
        lower=_constant_lower,
        facts=facts.moving(
            category="dataflow", view=False, cheap=False, zero="no", half="follows", rounds=True, folds=False
        ),
    ),
    # Only a float made from a float carries a gradient: cotangents exist for floats alone, and the autodiff asks for
    # float inputs alone.
    single(
        name="astype",
        infer=_astype_infer,
        evaluate=_astype,
        gradient=per_input(_astype_gradient),
        batch=batch.unary,
        lower=_astype_lower,
        facts=facts.elementwise(zero="all", monotone=False, nonnegative=False, half="single", rounds=True),
    ),
    single(
        name="stop_gradient",
        infer=_identity_infer,
        evaluate=np.asarray,
        gradient=no_gradient,
        batch=batch.unary,
        lower=_identity_lower,
        facts=facts.moving(
            category="dataflow", view=True, cheap=False, zero="no", half="follows", rounds=False, folds=True
        ),
    ),
    # The operand, which no pass may take for the operand itself: what is computed from it is computed again.
    single(
        name="barrier",
        infer=_identity_infer,
        evaluate=np.asarray,
        gradient=per_input(lambda call, g: g),
        batch=batch.unary,
        lower=_barrier_lower,
        facts=facts.moving(
            category="dataflow", view=True, cheap=True, zero="no", half="follows", rounds=True, folds=True
        ),
    ),
)
