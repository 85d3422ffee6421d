"""Operators that work element by element."""

from functools import reduce
from math import sqrt

import numpy as np

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.onnx.importer import activations
from coterie.compute.onnx.importer.operation import Operation, Rule, is_known, pointwise
from coterie.compute.onnx.importer.tensors import DTYPES


def _quotient(node: Operation) -> Array:
    a, b = node[0], node[1]
    if a.type.is_float:
        return a / b
    # ONNX cuts integers off towards zero: one above what is rounded down, where that is below 0 and not exact.
    if is_known(a) and is_known(b):
        quotient = np.floor_divide(a.numpy(), b.numpy())
        return Array(quotient + ((quotient < 0) & (quotient * b.numpy() != a.numpy())).astype(a.dtype.name))
    rounded = cnp.floor_divide(a, b)
    return rounded + cnp.astype(cnp.logical_and(rounded < 0, rounded * b != a), a.dtype)


def _remainder(node: Operation) -> Array:
    if not node.option("fmod", 0):
        return cnp.remainder(node[0], node[1])
    if is_known(node[0]) and is_known(node[1]):
        return Array(np.fmod(node.known(0), node.known(1)))
    quotient = _quotient(node)
    return node[0] - node[1] * (cnp.trunc(quotient) if quotient.type.is_float else quotient)


def _power(node: Operation) -> Array:
    x, exponent = node[0], node[1]
    if is_known(exponent) and exponent.size == 1:
        return cnp.pow(x, exponent.item())
    return cnp.pow(x, exponent if exponent.dtype == x.dtype else cnp.astype(exponent, x.dtype))


def _cast(node: Operation) -> Array:
    code = int(node.attributes["to"])
    if code not in DTYPES:
        node.refuse(f"coterie has no dtype of the ONNX code {code}", "Export in float32.")
    return cnp.astype(node[0], DTYPES[code])


def _cast_like(node: Operation) -> Array:
    return cnp.astype(node[0], node[1].dtype)


def _clip(node: Operation) -> Array:
    low, high = node.get(1), node.get(2)
    x = node[0] if low is None else cnp.maximum(node[0], low)
    return x if high is None else cnp.minimum(x, high)


def _selu(node: Operation) -> Array:
    alpha, gamma = node.option("alpha", 1.6732632423543772), node.option("gamma", 1.0507009873554805)
    return gamma * activations.elu(node[0], alpha)


def _celu(node: Operation) -> Array:
    alpha = node.option("alpha", 1.0)
    x = node[0]
    return cnp.maximum(x, 0.0) + alpha * (cnp.exp(cnp.minimum(x, 0.0) / alpha) - 1.0)


def _gelu(node: Operation) -> Array:
    x = node[0]
    if node.option("approximate", "none") == "tanh":
        return ops.gelu(x)
    return 0.5 * x * (1.0 + ops.erf(x * sqrt(0.5)))


def _is_infinite(node: Operation) -> Array:
    x = node[0]
    above, below = node.option("detect_positive", 1), node.option("detect_negative", 1)
    infinite = cnp.isinf(x)
    if above and below:
        return infinite
    return cnp.logical_and(infinite, (x > 0) if above else (x < 0) if below else cnp.zeros_like(infinite))


RULES: dict[str, Rule] = {
    "Abs": pointwise(cnp.abs),
    "Acos": pointwise(cnp.acos),
    "Acosh": pointwise(cnp.acosh),
    "Add": pointwise(cnp.add),
    "And": pointwise(cnp.logical_and),
    "Asin": pointwise(cnp.asin),
    "Asinh": pointwise(cnp.asinh),
    "Atan": pointwise(cnp.atan),
    "Atanh": pointwise(cnp.atanh),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Ceil": pointwise(cnp.ceil),
    "Celu": _celu,
    "Clip": _clip,
    "Cos": pointwise(cnp.cos),
    "Cosh": pointwise(cnp.cosh),
    "Div": _quotient,
    "Elu": lambda node: activations.elu(node[0], node.option("alpha", 1.0)),
    "Equal": pointwise(cnp.equal),
    "Erf": pointwise(ops.erf),
    "Exp": pointwise(cnp.exp),
    "Floor": pointwise(cnp.floor),
    "Gelu": _gelu,
    "Greater": pointwise(cnp.greater),
    "GreaterOrEqual": pointwise(cnp.greater_equal),
    "HardSigmoid": lambda node: activations.hard_sigmoid(node[0], node.option("alpha", 0.2), node.option("beta", 0.5)),
    "HardSwish": lambda node: node[0] * activations.hard_sigmoid(node[0], 1.0 / 6.0, 0.5),
    "IsInf": _is_infinite,
    "IsNaN": pointwise(cnp.isnan),
    "LeakyRelu": lambda node: activations.leaky(node[0], node.option("alpha", 0.01)),
    "Less": pointwise(cnp.less),
    "LessOrEqual": pointwise(cnp.less_equal),
    "Log": pointwise(cnp.log),
    "Max": lambda node: reduce(cnp.maximum, [node[index] for index in range(len(node.inputs))]),
    "Mean": lambda node: reduce(cnp.add, [node[index] for index in range(len(node.inputs))]) / len(node.inputs),
    "Min": lambda node: reduce(cnp.minimum, [node[index] for index in range(len(node.inputs))]),
    "Mish": lambda node: node[0] * cnp.tanh(ops.softplus(node[0])),
    "Mod": _remainder,
    "Mul": pointwise(cnp.multiply),
    "Neg": pointwise(cnp.negative),
    "Not": pointwise(cnp.logical_not),
    "Or": pointwise(cnp.logical_or),
    "PRelu": lambda node: activations.leaky(node[0], node[1]),
    "Pow": _power,
    "Reciprocal": pointwise(cnp.reciprocal),
    "Relu": pointwise(ops.relu),
    "Round": pointwise(cnp.round),
    "Selu": _selu,
    "Sigmoid": pointwise(ops.sigmoid),
    "Sign": pointwise(cnp.sign),
    "Sin": pointwise(cnp.sin),
    "Sinh": pointwise(cnp.sinh),
    "Softplus": pointwise(ops.softplus),
    "Softsign": lambda node: activations.softsign(node[0]),
    "Sqrt": pointwise(cnp.sqrt),
    "Sub": pointwise(cnp.subtract),
    "Sum": lambda node: reduce(cnp.add, [node[index] for index in range(len(node.inputs))]),
    "Tan": pointwise(cnp.tan),
    "Tanh": pointwise(cnp.tanh),
    "ThresholdedRelu": lambda node: activations.thresholded(node[0], node.option("alpha", 1.0)),
    "Where": pointwise(cnp.where),
    "Xor": pointwise(cnp.logical_xor),
}
