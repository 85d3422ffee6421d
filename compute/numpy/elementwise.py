"""Elementwise functions. Operands broadcast and are promoted as :class:`coterie.compute.array.Array` says."""

import numpy as np

from coterie.compute.array_type import Array, ArrayLike, as_array, bind, promote, refuse
from coterie.compute.primitives import rules
from coterie.compute.source import operation
from coterie.errors import DTypeError


def add(a: ArrayLike, b: ArrayLike) -> Array:
    return bind("add", *promote("add", a, b))


def subtract(a: ArrayLike, b: ArrayLike) -> Array:
    return bind("subtract", *promote("subtract", a, b))


def multiply(a: ArrayLike, b: ArrayLike) -> Array:
    return bind("multiply", *promote("multiply", a, b))


def divide(a: ArrayLike, b: ArrayLike) -> Array:
    """a / b, floats only."""
    return bind("divide", *promote("divide", a, b))


def maximum(a: ArrayLike, b: ArrayLike) -> Array:
    """The greater of two; where they are equal each gets half of the gradient."""
    return bind("maximum", *promote("maximum", a, b))


def minimum(a: ArrayLike, b: ArrayLike) -> Array:
    """The smaller of two; where they are equal each gets half of the gradient."""
    return bind("minimum", *promote("minimum", a, b))


@operation
def negative(x: ArrayLike) -> Array:
    """-x; of uint8 modulo 256."""
    array = as_array(x)
    return 0 - array if array.type.dtype == "uint8" else bind("negative", array)


def positive(x: ArrayLike) -> Array:
    return as_array(x)


@operation
def reciprocal(x: ArrayLike) -> Array:
    return divide(1.0, x)


@operation
def square(x: ArrayLike) -> Array:
    array = as_array(x)
    return bind("multiply", array, array)


@operation
def abs(x: ArrayLike) -> Array:
    """|x|; its gradient at 0 is 0."""
    array = as_array(x)
    if array.type.dtype == "uint8":
        return array
    return bind("maximum", array, bind("negative", array))


@operation
def sign(x: ArrayLike) -> Array:
    """-1, 0 or 1, and NaN for NaN."""
    array = as_array(x)
    zero, dtype = rules.number(0, array), array.type.dtype
    found = rules.greater_mask(array, zero, dtype) - rules.greater_mask(zero, array, dtype)
    if not array.type.is_float:
        return found
    return bind("where", bind("equal", array, array), found, bind("stop_gradient", array))


def exp(x: ArrayLike) -> Array:
    return bind("exp", as_array(x))


def log(x: ArrayLike) -> Array:
    """The natural logarithm."""
    return bind("log", as_array(x))


def sqrt(x: ArrayLike) -> Array:
    return bind("sqrt", as_array(x))


def tanh(x: ArrayLike) -> Array:
    return bind("tanh", as_array(x))


@operation
def clip(x: ArrayLike, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Array:
    """x bounded below and above."""
    array = as_array(x)
    array = array if min is None else maximum(array, min)
    return array if max is None else minimum(array, max)


@operation
def where(condition: ArrayLike, a: ArrayLike, b: ArrayLike) -> Array:
    """a where the condition holds, else b."""
    mask, (left, right) = as_array(condition), promote("where", a, b)
    if left.type.dtype == "bool":  # the choice between masks is missing on some providers: made of float masks
        left, right = rules.cast(left, "float32"), rules.cast(right, "float32")
        return greater(bind("where", mask, left, right), 0.0)
    return bind("where", mask, left, right)


def equal(a: ArrayLike, b: ArrayLike) -> Array:
    return bind("equal", *promote("equal", a, b))


@operation
def not_equal(a: ArrayLike, b: ArrayLike) -> Array:
    return logical_not(equal(a, b))


def greater(a: ArrayLike, b: ArrayLike) -> Array:
    return bind("greater", *promote("greater", a, b))


@operation
def less(a: ArrayLike, b: ArrayLike) -> Array:
    return greater(b, a)


@operation
def greater_equal(a: ArrayLike, b: ArrayLike) -> Array:
    # Not "not less": that would be true of NaN.
    return logical_or(greater(a, b), equal(a, b))


@operation
def less_equal(a: ArrayLike, b: ArrayLike) -> Array:
    return greater_equal(b, a)


@operation
def isnan(x: ArrayLike) -> Array:
    """Whether an element is no number."""
    array = as_array(x)
    return not_equal(array, array)


@operation
def isinf(x: ArrayLike) -> Array:
    """Whether an element is infinite; no integer is."""
    array = as_array(x)
    return equal(abs(array), np.inf) if array.type.is_float else not_equal(array, array)


@operation
def isfinite(x: ArrayLike) -> Array:
    """Whether an element is a number and not infinite; every integer is."""
    array = as_array(x)
    return greater(np.inf, abs(array)) if array.type.is_float else equal(array, array)


@operation
def signbit(x: ArrayLike) -> Array:
    """Whether the sign of a float is minus, of -0.0 too; not that of NaN."""
    array = as_array(x)
    return less(where(equal(array, 0.0), divide(1.0, array), array), 0.0)


@operation
def copysign(magnitude: ArrayLike, sign: ArrayLike) -> Array:
    """|magnitude| with the sign of the other operand."""
    left, right = promote("copysign", magnitude, sign)
    other = logical_xor(signbit(left), signbit(right))
    return left * where(other, rules.number(-1, left), rules.number(1, left))  # a product keeps -0


def _truth(name: str, x: ArrayLike) -> Array:
    array = as_array(x)
    if array.type.dtype != "bool":
        refuse(DTypeError, name, (array,), "the operand must be bool.", "Compare first: x > 0.")
    # Masks are floats in portable graphs: And, Or and Not are missing on some providers.
    return rules.cast(array, "float32")


@operation
def logical_not(x: ArrayLike) -> Array:
    return equal(_truth("logical_not", x), 0.0)


@operation
def logical_and(a: ArrayLike, b: ArrayLike) -> Array:
    return greater(_truth("logical_and", a) * _truth("logical_and", b), 0.0)


@operation
def logical_or(a: ArrayLike, b: ArrayLike) -> Array:
    return greater(_truth("logical_or", a) + _truth("logical_or", b), 0.0)


@operation
def logical_xor(a: ArrayLike, b: ArrayLike) -> Array:
    return logical_not(equal(_truth("logical_xor", a), _truth("logical_xor", b)))
