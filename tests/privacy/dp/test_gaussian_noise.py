"""Gaussian noise on a grid: exact sums, the promised sensitivity, nothing in the low bits."""

import math
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie import errors
from coterie.privacy.dp.noise import gaussian
from coterie.privacy.dp.noise.source import NoiseSource

stats: Any = import_module("scipy.stats")

KEY = b"a key of noise for tests alone.."
DEVIATIONS = st.floats(1e-12, 1e12)


@given(DEVIATIONS)
def test_the_grid_is_a_power_of_two_that_the_deviation_holds_four_million_times(deviation: float) -> None:
    step = gaussian.grid(deviation)
    assert math.frexp(step)[0] == 0.5
    assert 1 << 22 <= deviation / step < 1 << 23


@pytest.mark.parametrize("deviation", [0.37, 1.0, 1e-9, 12345.678])
def test_noise_is_normal_of_the_asked_deviation_and_lies_on_the_grid(deviation: float) -> None:
    count = 1 << 17
    noise = gaussian.noise(KEY, count, deviation)
    assert noise.dtype == np.float64
    assert np.array_equal(noise, np.rint(noise / gaussian.grid(deviation)) * gaussian.grid(deviation))
    assert stats.kstest(noise / deviation, "norm").pvalue > 1e-4
    assert abs((noise / deviation).var() - 1) < 4 * (2 / count) ** 0.5


def test_neighbouring_coordinates_are_independent() -> None:
    noise = gaussian.noise(KEY, 1 << 17, 1.0)
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 4 / noise.size**0.5
    assert abs(np.corrcoef(np.abs(noise[:-1]), np.abs(noise[1:]))[0, 1]) < 4 / noise.size**0.5


def test_one_key_is_one_noise() -> None:
    assert np.array_equal(gaussian.noise(KEY, 1000, 2.5), gaussian.noise(KEY, 1000, 2.5))
    assert not np.array_equal(gaussian.noise(KEY, 1000, 2.5), gaussian.noise(bytes(32), 1000, 2.5))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_what_is_released_is_the_vector_on_the_grid_plus_the_keys_noise_exactly(
    values: list[float], deviation: float
) -> None:
    """In rational terms: whole numbers of steps on both sides, no rounding anywhere after the first."""
    vector, step = np.array(values), gaussian.grid(deviation)
    released = gaussian.add(vector, deviation, NoiseSource(KEY))
    noise = gaussian.noise(KEY, vector.size, deviation)
    for value, drawn, total in zip(values, noise, released, strict=True):
        steps = round(total / step)
        assert steps * step == total
        assert steps == int(np.rint(value / step)) + round(drawn / step)


@given(st.data(), st.floats(1e-2, 1e2))
def test_two_vectors_clip_apart_are_at_most_the_sensitivity_apart_on_the_grid(data: Any, deviation: float) -> None:
    """Same key, so that the noise cancels: what is left is how far rounding moved them."""
    size = data.draw(st.integers(1, 40))
    numbers = st.lists(st.floats(-100, 100), min_size=size, max_size=size)
    one, other = np.array(data.draw(numbers)), np.array(data.draw(numbers))
    apart = float(np.linalg.norm(one - other))
    moved = gaussian.add(one, deviation, NoiseSource(KEY)) - gaussian.add(other, deviation, NoiseSource(KEY))
    assert float(np.linalg.norm(moved)) <= gaussian.sensitivity(apart, deviation, size) * (1 + 1e-12)


def test_the_sensitivity_is_hardly_more_than_the_clip() -> None:
    assert gaussian.sensitivity(1.0, 1.0, 1_000_000) == 1 + 2**-22 * 1000


def test_low_bits_do_not_depend_on_the_vector() -> None:
    """What broke samplers in floats: which low bits a sum can have told the value. Here every sum has the same ones."""
    for value in (0.0, 1.0, 1 / 3, 1e-300, 1e5 + 1e-9):
        released = gaussian.add(np.full(4096, value), 1.0, NoiseSource(KEY))
        steps = np.rint(released / gaussian.grid(1.0)).astype(np.int64)
        assert np.array_equal(steps * gaussian.grid(1.0), released)
        assert stats.chisquare(np.bincount(steps & 15, minlength=16)).pvalue > 1e-4


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e20])
def test_what_is_not_finite_or_too_large_is_a_bug_of_ours(bad: float) -> None:
    with pytest.raises(errors.InternalError, match="not finite, or huge"):
        gaussian.add(np.array([0.0, bad]), 1.0, NoiseSource(KEY))


@pytest.mark.parametrize("deviation", [0.0, -1.0, math.nan, math.inf, 1e-31])
def test_impossible_deviations_are_refused(deviation: float) -> None:
    with pytest.raises(errors.ArgumentValueError, match="between 1e-30 and 1e30"):
        gaussian.noise(KEY, 1, deviation)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_float32_vectors_are_noised_as_float64(kind: type[Any]) -> None:
    vector: npt.NDArray[Any] = np.ones(3, kind)
    assert gaussian.add(vector, 1.0, NoiseSource(KEY)).dtype == np.float64
    assert np.array_equal(vector, np.ones(3, kind))
