"""Elementwise arithmetic of two operands that broadcast, and negation."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from coterie.compute.array_type import Array, bind
from coterie.compute.ir import NDArray, Node, Type
from coterie.compute.primitives import batch, facts, rules
from coterie.compute.primitives.facts import Facts
from coterie.compute.primitives.row import Call, Emitter, Primitive, Rule, operator, per_input, single
from coterie.errors import DTypeError


def _binary_infer(a: Type, b: Type) -> Type:
    dtype = rules.same_dtype(a, b)
    if dtype == "bool":
        raise DTypeError(
            "arithmetic on bool.", hint='Convert it with astype(x, "float32"), or use logical_and, logical_or.'
        )
    return Type(dtype, rules.broadcast_shapes(a, b))


def _divide_infer(a: Type, b: Type) -> Type:
    rules.require_float(a)
    return _binary_infer(a, b)


def _negative_infer(x: Type) -> Type:
    if x.dtype in ("bool", "uint8"):
        raise DTypeError("the operand must be a signed number.", hint="Convert it with astype first.")
    return x


def _negative_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    # Neg is missing on some providers; a product with -1 is exact.
    return emit.op("Mul", names[0], emit.scalar(-1.0, node.output.type.dtype))


def _both(a: Callable[[Call, Array], Array], b: Callable[[Call, Array], Array]) -> tuple[Rule, Rule]:
    """The two rules, each summed over the axes along which its operand was broadcast."""
    return (
        lambda call, g: rules.unbroadcast(a(call, g), call.inputs[0].shape),
        lambda call, g: rules.unbroadcast(b(call, g), call.inputs[1].shape),
    )


def _wins(call: Call, index: int, greater: bool) -> Array:
    """1 where the operand is the result, 0 where it is not, 1/2 where both are: the mean of both derivatives."""
    mine, other = call.inputs[index], call.inputs[1 - index]
    dtype = mine.type.dtype
    above = rules.greater_mask(mine, other, dtype) if greater else rules.greater_mask(other, mine, dtype)
    return above + 0.5 * rules.equal_mask(mine, other, dtype)


def _divide(a: NDArray, b: NDArray) -> NDArray:
    return np.divide(a, b)


def _row(
    name: str,
    evaluate: Any,
    onnx: str,
    a: Callable[[Call, Array], Array],
    b: Callable[[Call, Array], Array],
    facts: Facts,
) -> Primitive:
    infer = _divide_infer if name == "divide" else _binary_infer
    return single(
        name=name,
        infer=infer,
        evaluate=cast("Callable[..., NDArray]", evaluate),
        gradient=per_input(*_both(a, b)),
        batch=batch.elementwise,
        lower=operator(onnx),
        facts=facts,
    )


def _negate(x: Array) -> Array:
    return bind("negative", x)


ROWS = (
    single(
        name="negative",
        infer=_negative_infer,
        evaluate=np.negative,
        gradient=per_input(lambda call, g: _negate(g)),
        batch=batch.unary,
        lower=_negative_lower,
        facts=facts.elementwise(zero="all", monotone=False, nonnegative=False, half="follows", rounds=True),
    ),
    _row(
        "add",
        np.add,
        "Add",
        lambda call, g: g,
        lambda call, g: g,
        facts.elementwise(zero="all", monotone=False, nonnegative=False, half="follows", rounds=True),
    ),
    _row(
        "subtract",
        np.subtract,
        "Sub",
        lambda call, g: g,
        lambda call, g: _negate(g),
        facts.elementwise(zero="all", monotone=False, nonnegative=False, half="follows", rounds=True),
    ),
    _row(
        "multiply",
        np.multiply,
        "Mul",
        lambda call, g: g * call.inputs[1],
        lambda call, g: g * call.inputs[0],
        facts.elementwise(zero="any", monotone=False, nonnegative=False, half="follows", rounds=True),
    ),
    _row(
        "divide",
        _divide,
        "Div",
        lambda call, g: g / call.inputs[1],
        lambda call, g: _negate(g / call.inputs[1]) * call.output,
        facts.elementwise(zero="no", monotone=False, nonnegative=False, half="single", rounds=True),
    ),
    _row(
        "maximum",
        np.maximum,
        "Max",
        lambda call, g: g * _wins(call, 0, True),
        lambda call, g: g * _wins(call, 1, True),
        facts.elementwise(zero="all", monotone=False, nonnegative=False, half="follows", rounds=True),
    ),
    _row(
        "minimum",
        np.minimum,
        "Min",
        lambda call, g: g * _wins(call, 0, False),
        lambda call, g: g * _wins(call, 1, False),
        facts.elementwise(zero="all", monotone=False, nonnegative=False, half="follows", rounds=True),
    ),
)
