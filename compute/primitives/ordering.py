"""Running sums, and the order of elements along an axis."""

from collections.abc import Sequence

import numpy as np

from coterie.compute.array_type import Array, bind
from coterie.compute.ir import NDArray, Node, Type
from coterie.compute.primitives import batch, facts
from coterie.compute.primitives.basic import ONNX_DTYPES
from coterie.compute.primitives.row import Call, Emitter, no_gradient, per_input, single
from coterie.errors import DTypeError, ShapeError


def _check_axis(x: Type, axis: int) -> None:
    if not 0 <= axis < x.rank:
        raise ShapeError(f"axis {axis} does not exist.", hint=f"The operand has {x.rank} axes.")


def _cumsum_infer(x: Type, *, axis: int, reverse: bool) -> Type:
    _check_axis(x, axis)
    if x.dtype in ("bool", "uint8"):
        raise DTypeError(f"running sums of {x.dtype}.", hint='Convert it with astype(x, "int32").')
    return x


def _cumsum(x: NDArray, *, axis: int, reverse: bool) -> NDArray:
    ordered = np.flip(x, axis) if reverse else x
    total = np.cumsum(ordered, axis=axis, dtype=x.dtype)
    return np.flip(total, axis) if reverse else total


def _cumsum_gradient(call: Call, g: Array) -> Array:
    return bind("cumsum", g, axis=call.attributes["axis"], reverse=not call.attributes["reverse"])


def _cumsum_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    axis = emit.constant(np.asarray(node.attributes["axis"], np.int64))
    return emit.op("CumSum", names[0], axis, reverse=int(node.attributes["reverse"]))


def _top_k_infer(x: Type, *, k: int, axis: int, largest: bool) -> Type:
    _check_axis(x, axis)
    if x.dtype == "bool":
        raise DTypeError("bool has no order.", hint='Convert it with astype(x, "int32").')
    if not 1 <= k <= x.shape[axis]:
        raise ShapeError(f"there are no {k} first of {x.shape[axis]} elements.", hint="1 <= k <= size of the axis.")
    return Type("int32", (*x.shape[:axis], k, *x.shape[axis + 1 :]))


def _top_k(x: NDArray, *, k: int, axis: int, largest: bool) -> NDArray:
    if largest:  # a stable order from the end, read backwards: the first of equal elements comes first
        backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = np.flip(x.shape[axis] - 1 - backwards, axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    return np.take(order, np.arange(k), axis=axis).astype(np.int32)


def _top_k_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    a = node.attributes
    _, indices = emit.ops(
        "TopK", 2, names[0], emit.integers([a["k"]]), axis=a["axis"], largest=int(a["largest"]), sorted=1
    )
    return emit.op("Cast", indices, to=ONNX_DTYPES["int32"])


ROWS = (
    single(
        name="cumsum",
        infer=_cumsum_infer,
        evaluate=_cumsum,
        gradient=per_input(_cumsum_gradient),
        batch=batch.shifted("axis"),
        lower=_cumsum_lower,
        facts=facts.computing(
            category="tensor",
            flops=facts.each,
            cheap=False,
            zero="all",
            nonnegative=False,
            half="single",
            derivative=False,
        ),
    ),
    # The positions alone: the values, and their gradient, are those of gather_along.
    single(
        name="top_k",
        infer=_top_k_infer,
        evaluate=_top_k,
        gradient=no_gradient,
        batch=batch.shifted("axis"),
        lower=_top_k_lower,
        facts=facts.computing(
            category="tensor",
            flops=facts.each,
            cheap=False,
            zero="no",
            nonnegative=False,
            half="single",
            derivative=False,
        ),
    ),
)
