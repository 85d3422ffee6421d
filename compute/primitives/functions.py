"""Elementwise functions of one float, and the row-wise softmax."""

from collections.abc import Callable, Sequence

import numpy as np

from coterie.compute.array_type import Array, bind
from coterie.compute.ir import NDArray, Node, Type
from coterie.compute.primitives import batch, facts, rules
from coterie.compute.primitives.facts import Facts
from coterie.compute.primitives.row import Call, Emitter, Evaluate, Lower, Primitive, operator, per_input, single
from coterie.errors import ShapeError


def _infer(x: Type) -> Type:
    rules.require_float(x)
    return x


def _sigmoid(x: NDArray) -> NDArray:
    # exp of a negative number only: no overflow, and full relative precision in both tails.
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _relu(x: NDArray) -> NDArray:
    return np.maximum(x, np.zeros((), x.dtype))


def _softplus(x: NDArray) -> NDArray:
    return np.logaddexp(np.zeros((), x.dtype), x)


def _softplus_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    # max(x, 0) + log(1 + exp(-|x|)) without Softplus or Abs, which are not portable; never overflows.
    x, dtype = names[0], node.output.type.dtype
    minus = emit.op("Min", x, emit.op("Mul", x, emit.scalar(-1.0, dtype)))
    tail = emit.op("Log", emit.op("Add", emit.op("Exp", minus), emit.scalar(1.0, dtype)))
    return emit.op("Add", emit.op("Relu", x), tail)


def _relu_gradient(call: Call, g: Array) -> Array:
    return g * rules.greater_mask(call.output, rules.number(0.0, g), g.type.dtype)


def _row(
    name: str, evaluate: Evaluate, lower: Lower, gradient: Callable[[Call, Array], Array], facts: Facts
) -> Primitive:
    return single(
        name=name,
        infer=_infer,
        evaluate=evaluate,
        gradient=per_input(gradient),
        batch=batch.unary,
        lower=lower,
        facts=facts,
    )


def _softmax_infer(x: Type, *, axis: int) -> Type:
    rules.require_float(x)
    if not 0 <= axis < x.rank:
        raise ShapeError(f"axis {axis} does not exist.", hint=f"The operand has {x.rank} axes.")
    if x.shape[axis] == 0:
        raise ShapeError("the softmax of nothing.", hint="Take it along an axis that is not empty.")
    return x


def _softmax(x: NDArray, *, axis: int) -> NDArray:
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def _softmax_gradient(call: Call, g: Array) -> Array:
    weighted = g * call.output
    return weighted - call.output * rules.sum_over(weighted, (call.attributes["axis"],), keepdims=True)


def _softmax_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    return emit.op("Softmax", names[0], axis=node.attributes["axis"])


ROWS = (
    _row(
        "exp",
        np.exp,
        operator("Exp"),
        lambda call, g: g * call.output,
        facts.elementwise(zero="no", monotone=True, nonnegative=True, half="single", rounds=True),
    ),
    _row(
        "log",
        np.log,
        operator("Log"),
        lambda call, g: g / call.inputs[0],
        facts.elementwise(zero="no", monotone=False, nonnegative=False, half="single", rounds=True),
    ),
    _row(
        "sqrt",
        np.sqrt,
        operator("Sqrt"),
        lambda call, g: 0.5 * g / call.output,
        facts.elementwise(zero="all", monotone=False, nonnegative=True, half="single", rounds=True),
    ),
    _row(
        "tanh",
        np.tanh,
        operator("Tanh"),
        lambda call, g: g * (1.0 - call.output * call.output),
        facts.elementwise(zero="all", monotone=True, nonnegative=False, half="follows", rounds=True),
    ),
    _row(
        "sigmoid",
        _sigmoid,
        operator("Sigmoid"),
        lambda call, g: g * (call.output * (1.0 - call.output)),
        facts.elementwise(zero="no", monotone=True, nonnegative=True, half="follows", rounds=True),
    ),
    _row(
        "relu",
        _relu,
        operator("Relu"),
        _relu_gradient,
        facts.elementwise(zero="all", monotone=True, nonnegative=True, half="follows", rounds=False),
    ),
    # A primitive and not a composition, because its derivatives at 0 (1/2, 1/4, ...) do not follow from max and |x|.
    _row(
        "softplus",
        _softplus,
        _softplus_lower,
        lambda call, g: g * bind("sigmoid", call.inputs[0]),
        facts.elementwise(zero="no", monotone=False, nonnegative=True, half="single", rounds=True),
    ),
    single(
        name="softmax",
        infer=_softmax_infer,
        evaluate=_softmax,
        gradient=per_input(_softmax_gradient),
        batch=batch.shifted("axis"),
        lower=_softmax_lower,
        facts=facts.computing(
            category="tensor",
            flops=facts.softmax,
            cheap=True,
            zero="no",
            nonnegative=True,
            half="single",
            derivative=False,
        ),
    ),
)
