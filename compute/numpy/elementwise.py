"""Elementwise functions. Operands broadcast and are promoted as :class:`coterie.compute.array.Array` says."""

from coterie.compute.array import Array, ArrayLike, as_array, bind, promote, refuse
from coterie.compute.primitives import rules
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


def negative(x: ArrayLike) -> Array:
    return bind("negative", as_array(x))


def positive(x: ArrayLike) -> Array:
    return as_array(x)


def reciprocal(x: ArrayLike) -> Array:
    return divide(1.0, x)


def square(x: ArrayLike) -> Array:
    array = as_array(x)
    return bind("multiply", array, array)


def abs(x: ArrayLike) -> Array:
    """|x|; its gradient at 0 is 0."""
    array = as_array(x)
    return bind("maximum", array, bind("negative", array))


def sign(x: ArrayLike) -> Array:
    """-1, 0 or 1 (0 for NaN)."""
    array = as_array(x)
    zero, dtype = rules.number(0, array), array.type.dtype
    return rules.greater_mask(array, zero, dtype) - rules.greater_mask(zero, array, dtype)


def exp(x: ArrayLike) -> Array:
    return bind("exp", as_array(x))


def log(x: ArrayLike) -> Array:
    """The natural logarithm."""
    return bind("log", as_array(x))


def sqrt(x: ArrayLike) -> Array:
    return bind("sqrt", as_array(x))


def tanh(x: ArrayLike) -> Array:
    return bind("tanh", as_array(x))


def pow(x: ArrayLike, exponent: ArrayLike) -> Array:
    """x to a power: by multiplication for a static integer, by square root for 0.5, else exp(exponent * log(x)) for x >
    0.
    """
    if isinstance(exponent, (int, float)) and not isinstance(x, (int, float)):
        base = as_array(x)
        if float(exponent).is_integer() and -64 <= exponent <= 64:
            return _integer_power(base, int(exponent))
        if exponent == 0.5:
            return sqrt(base)
    base, power = promote("pow", x, exponent)
    if not base.type.is_float:
        refuse(
            DTypeError, "pow", (base, power), "integers to an array of powers.", 'Convert with astype(x, "float32").'
        )
    return exp(multiply(power, log(base)))


def _integer_power(x: Array, exponent: int) -> Array:
    if exponent < 0:
        return divide(1.0, _integer_power(x, -exponent))
    result: Array | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else result * x
        exponent >>= 1
        x = x * x if exponent else x
    return bind("broadcast_to", rules.number(1, x), shape=x.shape) if result is None else result


def clip(x: ArrayLike, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Array:
    """x bounded below and above."""
    array = as_array(x)
    array = array if min is None else maximum(array, min)
    return array if max is None else minimum(array, max)


def where(condition: ArrayLike, a: ArrayLike, b: ArrayLike) -> Array:
    """a where the condition holds, else b."""
    return bind("where", as_array(condition), *promote("where", a, b))


def equal(a: ArrayLike, b: ArrayLike) -> Array:
    return bind("equal", *promote("equal", a, b))


def not_equal(a: ArrayLike, b: ArrayLike) -> Array:
    return logical_not(equal(a, b))


def greater(a: ArrayLike, b: ArrayLike) -> Array:
    return bind("greater", *promote("greater", a, b))


def less(a: ArrayLike, b: ArrayLike) -> Array:
    return greater(b, a)


def greater_equal(a: ArrayLike, b: ArrayLike) -> Array:
    # Not "not less": that would be true of NaN.
    return logical_or(greater(a, b), equal(a, b))


def less_equal(a: ArrayLike, b: ArrayLike) -> Array:
    return greater_equal(b, a)


def _truth(name: str, x: ArrayLike) -> Array:
    array = as_array(x)
    if array.type.dtype != "bool":
        refuse(DTypeError, name, (array,), "the operand must be bool.", "Compare first: x > 0.")
    # Masks are floats in portable graphs: And, Or and Not are missing on some providers.
    return rules.cast(array, "float32")


def logical_not(x: ArrayLike) -> Array:
    return equal(_truth("logical_not", x), 0.0)


def logical_and(a: ArrayLike, b: ArrayLike) -> Array:
    return greater(_truth("logical_and", a) * _truth("logical_and", b), 0.0)


def logical_or(a: ArrayLike, b: ArrayLike) -> Array:
    return greater(_truth("logical_or", a) + _truth("logical_or", b), 0.0)


def logical_xor(a: ArrayLike, b: ArrayLike) -> Array:
    return logical_not(equal(_truth("logical_xor", a), _truth("logical_xor", b)))
