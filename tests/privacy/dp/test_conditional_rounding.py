"""Rounding at random: never beyond the bound, up and down with the fraction's probability."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coterie.privacy.dp.noise.conditional_rounding import largest_square, round_within
from coterie.privacy.dp.noise.source import NoiseSource

KEY = b"a key of noise for tests alone.."


@given(
    arrays.arrays(np.float64, st.integers(1, 50), elements=st.floats(-1e9, 1e9)),
    st.integers(0, 10**6),
    st.binary(min_size=32, max_size=32),
)
def test_the_squares_never_sum_beyond_the_bound_whatever_the_vector(
    vector: npt.NDArray[Any], square: int, key: bytes
) -> None:
    rounded = round_within(vector, square, NoiseSource(key))
    assert rounded.dtype == np.int64
    assert sum(int(value) ** 2 for value in rounded) <= square


@given(
    arrays.arrays(np.float64, st.integers(1, 50), elements=st.floats(-1e4, 1e4)), st.binary(min_size=32, max_size=32)
)
def test_every_coordinate_goes_to_a_whole_number_beside_it(vector: npt.NDArray[Any], key: bytes) -> None:
    rounded = round_within(vector, largest_square(float(np.linalg.norm(vector)), vector.size), NoiseSource(key))
    assert (np.abs(rounded - vector) < 1).all() or not rounded.any()


def test_whole_numbers_stay() -> None:
    assert round_within(np.array([3.0, -4.0, 0.0]), 25, NoiseSource(KEY)).tolist() == [3, -4, 0]


def test_rounding_is_unbiased_where_the_bound_is_wide() -> None:
    vector, count = np.array([0.25, -0.25, 1.9, -7.5, 0.001]), 20_000
    source = NoiseSource(KEY)
    mean = np.mean([round_within(vector, 10**6, source) for _ in range(count)], axis=0)
    error = np.sqrt(np.array([0.1875, 0.1875, 0.09, 0.25, 0.001]) / count)
    assert (np.abs(mean - vector) < 4.5 * error).all()


def test_the_bound_is_that_of_theorem_one() -> None:
    """c² + d/4 + c + √d/2 with β = exp(-1/2); (c + √d)² where that is less."""
    assert largest_square(100.0, 10_000) == 10_000 + 2500 + 100 + 50
    assert largest_square(1e-9, 4) == min(math.floor((1e-9 + 2) ** 2), 1 + 1)
    assert largest_square(0.1, 1) == min(math.floor(1.1**2), math.floor(0.01 + 0.25 + 0.1 + 0.5))


@pytest.mark.parametrize("norm", [5.0, 40.0, 1000.0])
def test_most_attempts_stay_within_the_bound(norm: float) -> None:
    """At least 1 - exp(-1/2) = 0.39 of them: of vectors whose coordinates are as bad as can be, halves."""
    rng, source, dimension, tries, kept = np.random.default_rng(0), NoiseSource(KEY), 256, 300, 0
    square = largest_square(norm, dimension)
    for _ in range(tries):
        vector = rng.standard_normal(dimension)
        vector *= norm / np.linalg.norm(vector)
        words = source.words32(dimension) < (vector - np.floor(vector)) * 2.0**32
        kept += int(((np.floor(vector) + words) ** 2).sum() <= square)
    assert kept / tries > 0.39


class Unlucky(NoiseSource):
    """A source by which everything is rounded up."""

    def __init__(self) -> None:
        super().__init__(KEY)
        self.asked = 0

    def words32(self, count: int) -> npt.NDArray[np.uint32]:
        self.asked += 1
        return np.zeros(count, np.uint32)


def test_after_many_attempts_in_vain_all_is_rounded_towards_zero() -> None:
    source = Unlucky()
    assert round_within(np.full(100, 0.5), 50, source).tolist() == [0] * 100
    assert source.asked == 64
    assert round_within(np.array([3.5, -3.5]), 18, Unlucky()).tolist() == [3, -3]


def test_a_vector_beyond_the_bound_even_so_becomes_zero() -> None:
    assert round_within(np.array([1e18, 0.0]), 100, NoiseSource(KEY)).tolist() == [0, 0]
    assert round_within(np.array([10.5, 0.0]), 99, NoiseSource(KEY)).tolist() == [0, 0]
