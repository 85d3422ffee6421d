"""x to the power y, elementwise."""

import numpy as np

from coterie.compute.array_type import Array, bind
from coterie.compute.ir import NDArray, Type
from coterie.compute.primitives import batch, facts, rules
from coterie.compute.primitives.row import Call, operator, per_input, single
from coterie.errors import DTypeError, InputError


def _infer(x: Type, y: Type) -> Type:
    dtype = rules.same_dtype(x, y)
    if dtype in ("bool", "uint8"):
        raise DTypeError(f"powers of {dtype}.", hint='Convert it with astype(x, "int32").')
    return Type(dtype, rules.broadcast_shapes(x, y))


def _power(x: NDArray, y: NDArray) -> NDArray:
    if y.dtype.kind == "i" and y.size and y.min() < 0:
        raise InputError(
            f"power: an integer to the negative power {y.min()} is no integer.",
            hint='Convert the base with astype(x, "float32").',
        )
    return np.power(x, y)


def _base(call: Call, g: Array) -> Array:
    # y x^(y-1), where y = 0 is taken out: 0 x^-1 would be NaN at 0.
    x, y = call.inputs
    zero = bind("equal", y, rules.number(0, y))
    lower = bind("where", zero, rules.number(1, y), y - 1.0)
    return rules.unbroadcast(g * (y * bind("power", x, lower)), x.shape)


def _exponent(call: Call, g: Array) -> Array:
    # x^y log x; 0 at x = 0, where powers do not change with y > 0. NaN for x < 0, where real powers have no derivative.
    x, y = call.inputs
    zero = bind("equal", x, rules.number(0, x))
    log = bind("log", bind("where", zero, rules.number(1, x), x))
    return rules.unbroadcast(g * (call.output * log), y.shape)


ROWS = (
    single(
        name="power",
        infer=_infer,
        evaluate=_power,
        gradient=per_input(_base, _exponent),
        batch=batch.elementwise,
        lower=operator("Pow"),
        facts=facts.elementwise(zero="no", monotone=False, nonnegative=False, half="single", rounds=True),
    ),
)
