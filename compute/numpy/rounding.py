"""Rounding, and division that rounds down. Results change in steps: no gradient passes, except through remainder."""

import numpy as np

from coterie.compute.array_type import Array, ArrayLike, as_array, bind, promote, refuse
from coterie.compute.numpy.elementwise import abs, logical_and, logical_or, signbit, where
from coterie.compute.primitives import rules
from coterie.compute.source import operation
from coterie.errors import DTypeError


def _number(name: str, x: ArrayLike) -> Array:
    array = as_array(x)
    if array.type.dtype == "bool":
        refuse(DTypeError, name, (array,), "bool is no number.", 'Convert it with astype(x, "int32").')
    return array


@operation
def floor(x: ArrayLike) -> Array:
    """The greatest whole number that is not above x. Integers stay."""
    array = _number("floor", x)
    return bind("floor", array) if array.type.is_float else array


@operation
def ceil(x: ArrayLike) -> Array:
    """The smallest whole number that is not below x. Integers stay."""
    array = _number("ceil", x)
    return bind("negative", bind("floor", bind("negative", array))) if array.type.is_float else array


@operation
def trunc(x: ArrayLike) -> Array:
    """x without its fraction. Integers stay."""
    array = _number("trunc", x)
    if not array.type.is_float:
        return array
    return where(bind("greater", array, rules.number(0, array)), floor(array), ceil(array))  # where a -0 last stays


@operation
def round(x: ArrayLike) -> Array:
    """The nearest whole number, the even one of two that are equally near. Integers stay. Made of floor, because some
    providers lack Round.
    """
    array = _number("round", x)
    if not array.type.is_float:
        return array
    below, half = bind("floor", array), rules.number(0.5, array)
    rest = bind("stop_gradient", array) - below
    odd = bind("greater", below - 2.0 * bind("floor", 0.5 * below), rules.number(0, array))
    up = logical_or(bind("greater", rest, half), logical_and(bind("equal", rest, half), odd))
    return where(up, below + 1.0, below)  # not below + 0.0, which is 0 for -0


@operation
def floor_divide(a: ArrayLike, b: ArrayLike) -> Array:
    """a / b rounded down: the floor of the rounded quotient for floats, exact for integers (0 where b is 0)."""
    left, right = promote("floor_divide", a, b)
    _number("floor_divide", left)
    return floor(left / right) if left.type.is_float else bind("floor_divide", left, right)


@operation
def remainder(a: ArrayLike, b: ArrayLike) -> Array:
    """a - b * floor_divide(a, b): what division leaves over, with the sign of b, also of 0; of integers a where b is 0.
    Of floats within the rounding of a, of which little is left where the quotient is large. Gradients pass as through
    the subtraction and the product.
    """
    plain = isinstance(b, (int, float)) and 0 < b < np.inf
    left, right = promote("remainder", a, b)
    if plain or not left.type.is_float:
        return left - right * floor_divide(left, right)
    # Divisors below 0 are turned about, and with them what is left; one beyond all numbers is the greatest of them.
    up = where(bind("greater", rules.number(0, right), right), rules.number(-1, right), rules.number(1, right))
    left, right = left * up, right * up
    most = rules.number(float(np.finfo(right.dtype).max), right)
    rest = left - bind("minimum", right, most) * floor_divide(left, right)
    return up * where(bind("greater", rules.number(0, rest), rest), rest + right, rest)


@operation
def nextafter(a: ArrayLike, b: ArrayLike) -> Array:
    """The float beside a in the direction of b; b where they are equal.

    Rounding finds it (Rump, Zimmermann, Boldo and Melquiond, Computing predecessor and successor in rounding to
    nearest, BIT 49, 2009): a little more than half of the last place is added to a, which is first made large if it is
    small, so that its last place is one of a normal number. Exact where numbers below the normal ones are not flushed.
    """
    start, goal = (bind("stop_gradient", x) for x in promote("nextafter", a, b))
    if not start.type.is_float:
        fix = 'Convert them with astype(x, "float32").'
        refuse(DTypeError, "nextafter", (start, goal), "the operands must be floats.", fix)
    limits, zero, one = np.finfo(start.dtype), rules.number(0, start), rules.number(1, start)
    # Below 0 all is turned about: products keep -0, which ONNX Runtime's Where does not if it is the first choice.
    signed = where(bind("greater", abs(start), zero), start, goal)
    up = where(signbit(signed), rules.number(-1, start), one)
    start, goal = start * up, goal * up
    unit, least = float(limits.eps) / 2, 2 * float(limits.smallest_normal)  # least * unit is the least number
    small = bind("greater", one, start)
    scaled = where(small, start * (1 / unit), start)
    step = bind("maximum", unit * (1 + 2 * unit) * scaled, rules.number(least, start))
    moved = where(bind("greater", goal, start), scaled + step, scaled - step)
    moved = where(small, moved * unit, moved)
    infinite = bind("equal", start, rules.number(np.inf, start))
    moved = where(infinite, rules.number(float(limits.max), start), moved)
    moved = where(bind("equal", start, goal), goal, moved)
    return up * where(bind("equal", goal, goal), moved, goal)
