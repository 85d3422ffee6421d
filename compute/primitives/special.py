"""More elementwise functions of one float: sine and cosine, arc tangent, error function, log(1 + x), and rounding down.

Other functions of the kind are made of these by :mod:`coterie.compute.numpy.elementary`.
"""

from collections.abc import Callable, Sequence
from math import erf, pi, sqrt

import numpy as np

from coterie.compute.array_type import Array, bind
from coterie.compute.ir import NDArray, Node, Type
from coterie.compute.primitives import batch, facts, rules
from coterie.compute.primitives.facts import Facts
from coterie.compute.primitives.row import Call, Emitter, Lower, Primitive, no_gradient, operator, per_input, single
from coterie.errors import TraceError

_erf = np.frompyfunc(erf, 1, 1)  # NumPy has none


def _infer(x: Type) -> Type:
    rules.require_float(x)
    return x


def _error_function(x: NDArray) -> NDArray:
    return np.asarray(_erf(x), dtype=x.dtype)


def _single(name: str) -> Lower:
    """One ONNX operator that CPU providers have for single precision alone."""

    def lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
        if node.output.type.dtype == "float64":
            where = f"{node.source}: " if node.source else ""
            raise TraceError(
                f"{where}{node.primitive} of float64 cannot be written: no provider has {name} in double precision.",
                hint='Convert with astype(x, "float32") first.',
            )
        return emit.op(name, *names)

    return lower


def _log1p_lower(emit: Emitter, node: Node, names: Sequence[str]) -> str:
    # log(u) for the rounded u = 1 + x, and what the rounding lost, over u (Higham, Accuracy and Stability, 1.14.1, in
    # the form of a correction). The bounds keep inf - inf and 0 / 0 away.
    x, dtype = names[0], node.output.type.dtype
    one = emit.scalar(1.0, dtype)
    finite = emit.op("Min", x, emit.scalar(3e4, dtype))
    lost = emit.op("Sub", finite, emit.op("Sub", emit.op("Add", finite, one), one))
    u = emit.op("Add", x, one)
    share = emit.op("Div", lost, emit.op("Max", u, emit.scalar(float(np.finfo(dtype).tiny), dtype)))
    return emit.op("Add", emit.op("Log", u), share)


def _row(
    name: str, evaluate: Callable[..., NDArray], lower: Lower, gradient: Callable[[Call, Array], Array], facts: Facts
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


def _minus_sine(call: Call, g: Array) -> Array:
    return bind("negative", g * bind("sin", call.inputs[0]))


def _bell(call: Call, g: Array) -> Array:
    x = call.inputs[0]
    return g * (2.0 / sqrt(pi) * bind("exp", bind("negative", x * x)))


ROWS = (
    _row(
        "sin",
        np.sin,
        operator("Sin"),
        lambda call, g: g * bind("cos", call.inputs[0]),
        facts.elementwise(zero="no", monotone=False, nonnegative=False, half="follows", rounds=True),
    ),
    _row(
        "cos",
        np.cos,
        operator("Cos"),
        _minus_sine,
        facts.elementwise(zero="no", monotone=False, nonnegative=False, half="follows", rounds=True),
    ),
    _row(
        "atan",
        np.arctan,
        _single("Atan"),
        lambda call, g: g / (1.0 + call.inputs[0] * call.inputs[0]),
        facts.elementwise(zero="no", monotone=False, nonnegative=False, half="follows", rounds=True),
    ),
    _row(
        "erf",
        _error_function,
        _single("Erf"),
        _bell,
        facts.elementwise(zero="no", monotone=False, nonnegative=False, half="follows", rounds=True),
    ),
    _row(
        "log1p",
        np.log1p,
        _log1p_lower,
        lambda call, g: g / (1.0 + call.inputs[0]),
        facts.elementwise(zero="no", monotone=False, nonnegative=False, half="follows", rounds=True),
    ),
    single(
        name="floor",
        infer=_infer,
        evaluate=np.floor,
        gradient=no_gradient,
        batch=batch.unary,
        lower=operator("Floor"),
        facts=facts.elementwise(zero="no", monotone=True, nonnegative=False, half="follows", rounds=True),
    ),
)
