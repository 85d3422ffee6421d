"""Rounding, and division that rounds down. Results change in steps: no gradient passes, except through remainder."""

from coterie.compute.array import Array, ArrayLike, as_array, bind, promote, refuse
from coterie.compute.numpy.elementwise import logical_and, logical_or, where
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
    return where(bind("greater", rules.number(0, array), array), ceil(array), floor(array))


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
    """a - b * floor_divide(a, b): what division leaves over, with the sign of b; of integers a where b is 0. Of floats
    within the rounding of a, of which little is left, not even the sign, where the quotient is large. Gradients pass as
    through the subtraction and the product.
    """
    left, right = promote("remainder", a, b)
    return left - right * floor_divide(left, right)
