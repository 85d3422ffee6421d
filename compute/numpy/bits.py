"""Bits of integers and of bool. ONNX has operators for them only from opset 18 on, so that they are made of arithmetic:
no bit is ever lost to rounding or overflow. Results change in steps, and no gradient passes.
"""

from collections.abc import Callable

import numpy as np

from coterie.compute.array_type import Array, ArrayLike, as_array, bind, promote, refuse
from coterie.compute.ir import NARROW
from coterie.compute.numpy.elementwise import logical_and, logical_not, logical_or, logical_xor
from coterie.compute.numpy.manipulation import concat, slice_along
from coterie.compute.primitives import rules
from coterie.compute.source import operation
from coterie.errors import DTypeError

_WIDTH = {"uint8": 8, "int8": 8, "int16": 16, "int32": 32, "int64": 64}
_BASE = 16


def _whole(name: str, *operands: ArrayLike, masks: bool = True) -> tuple[Array, ...]:
    arrays = promote(name, *operands)
    if arrays[0].type.is_float or (arrays[0].type.dtype == "bool" and not masks):
        kinds, fix = ("bool or integers", "Compare first: x > 0.") if masks else ("integers", "Convert with astype.")
        refuse(DTypeError, name, arrays, f"the operands must be {kinds}.", fix)
    return arrays


def _wide(x: Array) -> Array:
    """uint8, int8 and int16, for which few kernels exist, as int32."""
    return rules.cast(x, "int32") if x.type.dtype in ("uint8", *NARROW) else x


def _digits(x: Array, places: Array) -> Array:
    """x[...] → [..., places]: the digits to base 16 at these powers of it. All are of 0..15 but the last of a signed
    dtype, which has the sign too: of -8..7.
    """
    ones = rules.reshape(x, (*x.shape, 1))
    above = bind("floor_divide", ones, places)
    last = above.shape[-1]
    nothing = bind("broadcast_to", rules.number(0, x), shape=ones.shape)
    return above - _BASE * concat([slice_along(above, x.ndim, 1, last), nothing], axis=-1)


def _by_digits(function: Callable[[int, int], int], left: Array, right: Array) -> Array:
    """A function of bits, by a table of its values for two digits; one more is of digits with a sign."""
    dtype, (a, b) = left.type.dtype, (_wide(left), _wide(right))
    count = _WIDTH[dtype] // 4
    places = np.asarray([_BASE**k for k in range(count)], a.dtype)
    unsigned, signed = range(_BASE), range(-_BASE // 2, _BASE // 2)
    table = [function(i, j) for digits in (unsigned, signed) for i in digits for j in digits]
    first = np.zeros(count, a.dtype)
    if dtype != "uint8":
        first[-1] = _BASE**2 + (_BASE + 1) * _BASE // 2  # where the digits 0 and 0 with a sign stand
    row = _BASE * _digits(a, Array(places)) + _digits(b, Array(places)) + Array(first)
    found = bind("gather", Array(np.asarray(table, a.dtype)), row, axis=0)
    # ONNX Runtime adds int64 as doubles: never more than 32 bits in one sum.
    halves = [slice_along(found, row.ndim - 1, k, min(k + 8, count)) for k in range(0, count, 8)]
    sums = [rules.sum_over(half * Array(places[:8]), (row.ndim - 1,)) for half in halves]
    return rules.cast(sums[0] if len(sums) == 1 else sums[0] + 2**32 * sums[1], dtype)


@operation
def bitwise_invert(x: ArrayLike) -> Array:
    """Every bit changed: logical_not of bool, -1 - x of integers, 255 - x of uint8."""
    (array,) = _whole("bitwise_invert", as_array(x))
    if array.type.dtype == "bool":
        return logical_not(array)
    return (255 if array.type.dtype == "uint8" else -1) - array


@operation
def bitwise_and(a: ArrayLike, b: ArrayLike) -> Array:
    """The bits that both have: logical_and of bool. Integers take a digit of 4 bits at a time out of a table, in memory
    of 8 (int32) or 16 (int64) times the result.
    """
    left, right = _whole("bitwise_and", a, b)
    return logical_and(left, right) if left.type.dtype == "bool" else _by_digits(int.__and__, left, right)


@operation
def bitwise_or(a: ArrayLike, b: ArrayLike) -> Array:
    """The bits that one of both has: logical_or of bool; of integers like :func:`bitwise_and`."""
    left, right = _whole("bitwise_or", a, b)
    return logical_or(left, right) if left.type.dtype == "bool" else _by_digits(int.__or__, left, right)


@operation
def bitwise_xor(a: ArrayLike, b: ArrayLike) -> Array:
    """The bits that exactly one of both has: logical_xor of bool; of integers like :func:`bitwise_and`."""
    left, right = _whole("bitwise_xor", a, b)
    return logical_xor(left, right) if left.type.dtype == "bool" else _by_digits(int.__xor__, left, right)


def _shifts(name: str, a: ArrayLike, b: ArrayLike) -> tuple[Array, Array, str]:
    """Integers, shifts of which none is above their width or negative, and the dtype of the result."""
    left, right = _whole(name, a, b, masks=False)
    dtype, (left, right) = left.type.dtype, (_wide(left), _wide(right))
    beyond = rules.number(_WIDTH[left.type.dtype], right)
    known = bind("where", bind("greater", rules.number(0, right), right), beyond, bind("minimum", right, beyond))
    return left, known, dtype


def _power(shift: Array, most: list[int]) -> Array:
    """2**shift, and these two for the greatest shifts, which are those by width - 1 and by width."""
    powers = [2**k for k in range(_WIDTH[shift.type.dtype] - 1)]
    return bind("gather", Array(np.asarray([*powers, *most], shift.dtype)), shift, axis=0)


@operation
def bitwise_left_shift(a: ArrayLike, b: ArrayLike) -> Array:
    """a * 2**b of integers, modulo 2**width; 0 where b is the width of the dtype or more, or negative."""
    left, shift, dtype = _shifts("bitwise_left_shift", a, b)
    product = left * _power(shift, [np.iinfo(left.dtype).min, 0])
    if dtype == "uint8":
        product = product - 256 * bind("floor_divide", product, rules.number(256, product))
    return rules.cast(product, dtype)


@operation
def bitwise_right_shift(a: ArrayLike, b: ArrayLike) -> Array:
    """a // 2**b of integers: 0, or -1 of a negative a, where b is the width of the dtype or more, or negative."""
    left, shift, dtype = _shifts("bitwise_right_shift", a, b)
    quotient = bind("floor_divide", left, _power(shift, [1, 1]))
    far = bind("greater", shift, rules.number(_WIDTH[left.type.dtype] - 2, shift))
    sign = 0 - rules.greater_mask(rules.number(0, left), left, left.type.dtype)
    return rules.cast(bind("where", far, sign, quotient), dtype)
