"""Functions of bits are NumPy's for every dtype: evaluated, compiled, and of every two numbers of 8 bits."""

# The table holds functions of NumPy, which have no declared types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie.compute import jit
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.ir import NDArray

FUNCTIONS = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_left_shift": np.left_shift,
    "bitwise_right_shift": np.right_shift,
}
DTYPES = ["uint8", "int8", "int16", "int32", "int64"]


def drawn(dtype: str, seed: int) -> NDArray:
    """Numbers of the whole range, and its ends beside small ones."""
    limits = np.iinfo(dtype)
    ends = np.asarray([limits.min, limits.max, limits.min + 1, limits.max - 1, 0, 1, 15, 16], dtype)
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(ends), rng.integers(limits.min, limits.max, 48, dtype, endpoint=True)])


def both(name: str, *operands: NDArray) -> list[NDArray]:
    function: Callable[..., Any] = getattr(cnp, name)
    return [function(*map(Array, operands)).numpy(), jit(function)(*operands).numpy()]


def assert_same(found: NDArray, expected: NDArray) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.capability("A13")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_two_are_numpys(dtype: str, name: str) -> None:
    a, b = drawn(dtype, 0), drawn(dtype, 1)
    if name.endswith("shift"):  # every width, more than that, and (which the standard leaves open) negative shifts
        b = np.arange(b.size).astype(dtype) + (0 if dtype == "uint8" else -2)
        a, b = a[:, None], np.concatenate([b, np.asarray([63, 64, 100, np.iinfo(dtype).max], dtype)])
    for found in both(name, a, b):
        assert_same(found, FUNCTIONS[name](a, b))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_of_every_two_numbers_of_8_bits_are_numpys(name: str) -> None:
    a = np.arange(256).astype(np.uint8)
    for found in both(name, a[:, None], a[:24] if name.endswith("shift") else a):
        assert_same(found, FUNCTIONS[name](a[:, None], a[:24] if name.endswith("shift") else a))


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_inverted(dtype: str) -> None:
    for found in both("bitwise_invert", drawn(dtype, 2)):
        assert_same(found, ~drawn(dtype, 2))


def test_operators_take_numbers_on_both_sides_and_arrays_of_rank_0() -> None:
    x = cnp.asarray([1, 6])
    told = [x & 3, 3 & x, x | 8, 8 | x, x ^ 2, 2 ^ x, x << 1, 1 << x, x >> 1, 64 >> x, ~x]
    assert [result.numpy().tolist() for result in told] == [
        [1, 2], [1, 2], [9, 14], [9, 14], [3, 4], [3, 4], [2, 12], [2, 64], [0, 3], [32, 1], [-2, -7],
    ]  # fmt: skip
    assert (cnp.asarray(12) & cnp.asarray(10)).item() == 8


def test_dtypes_of_different_width_give_the_wider() -> None:
    a, b = drawn("int32", 3), drawn("uint8", 4)
    for found in both("bitwise_or", a, b):
        assert_same(found, a | b)
