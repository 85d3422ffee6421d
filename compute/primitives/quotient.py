"""Division of integers, rounded down."""

from collections.abc import Sequence

import numpy as np

from coterie.compute.ir import SIGNED, NDArray, Node, Type
from coterie.compute.primitives import batch, facts, rules
from coterie.compute.primitives.basic import ONNX_DTYPES
from coterie.compute.primitives.row import Emitter, no_gradient, single
from coterie.errors import DTypeError


def _infer(x: Type, y: Type) -> Type:
    dtype = rules.same_dtype(x, y)
    if dtype not in ("uint8", *SIGNED):
        raise DTypeError("the operands must be integers.", hint="Use floor_divide of coterie.compute.numpy.")
    return Type(dtype, rules.broadcast_shapes(x, y))


def _floor_divide(x: NDArray, y: NDArray) -> NDArray:
    return np.floor_divide(x, y)  # by zero: 0


def _lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    # Div cuts off towards zero. A processor stops the program at x / 0 and at the lowest integer / -1, so neither is
    # ever asked for: 0 and -x stand in their place, as in NumPy. The checker of graphs knows this form.
    (x, y), dtype = names, node.output.type.dtype
    zero, one = emit.scalar(0, dtype), emit.scalar(1, dtype)
    by_zero = emit.op("Equal", y, zero)
    divisor = emit.op("Where", by_zero, one, y)
    if dtype == "uint8":
        return emit.op("Where", by_zero, zero, emit.op("Div", x, divisor))
    minus = emit.scalar(-1, dtype)
    by_minus = emit.op("Equal", divisor, minus)
    cut = emit.op("Div", x, emit.op("Where", by_minus, one, divisor))
    cut = emit.op("Where", by_minus, emit.op("Mul", x, minus), cut)
    rest = emit.op("Sub", x, emit.op("Mul", cut, divisor))

    def mask(a: str, b: str) -> str:
        return emit.op("Cast", emit.op("Greater", a, b), to=ONNX_DTYPES[dtype])

    above = emit.op("Mul", mask(rest, zero), mask(zero, y))
    below = emit.op("Mul", mask(zero, rest), mask(y, zero))
    return emit.op("Where", by_zero, zero, emit.op("Sub", cut, emit.op("Add", above, below)))


ROWS = (
    single(
        name="floor_divide",
        infer=_infer,
        evaluate=_floor_divide,
        gradient=no_gradient,
        batch=batch.elementwise,
        lower=_lower,
        facts=facts.elementwise(zero="no", monotone=False, nonnegative=False, half="single", rounds=True),
    ),
)
