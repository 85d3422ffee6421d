"""No vector contributes more than the bound, whatever is in it."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coterie import errors
from coterie.privacy.dp.clipping import clip

ANYTHING = arrays.arrays(
    st.sampled_from([np.float32, np.float64]), st.integers(0, 30), elements={"allow_nan": True, "allow_infinity": True}
)


def norm(vector: npt.NDArray[np.float64]) -> float:
    return math.sqrt(float(np.dot(vector, vector)))


@given(ANYTHING, st.floats(1e-6, 1e6))
def test_the_norm_is_at_most_the_bound_for_any_vector(vector: npt.NDArray[Any], bound: float) -> None:
    held = clip(vector, bound)
    assert held.vector.dtype == np.float64
    assert norm(held.vector) <= bound
    if not np.isfinite(vector).all():
        assert held.shortened
        assert not held.vector.any()


@given(arrays.arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e3, 1e3)), st.floats(1e-3, 1e3))
def test_short_vectors_stay_and_long_ones_keep_their_direction(vector: npt.NDArray[Any], bound: float) -> None:
    held = clip(vector, bound)
    if norm(vector) <= bound:
        assert not held.shortened
        assert np.array_equal(held.vector, vector)
    else:
        assert held.shortened
        assert norm(held.vector) == pytest.approx(bound, rel=1e-12)
        assert np.allclose(held.vector, vector * (bound / norm(vector)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_number_that_is_not_finite_makes_the_whole_vector_zero(bad: float) -> None:
    held = clip(np.array([1.0, bad, 2.0]), 5.0)
    assert held.vector.tolist() == [0.0, 0.0, 0.0]
    assert held.shortened


def test_squares_that_would_overflow_are_clipped_all_the_same() -> None:
    held = clip(np.array([3e300, 4e300]), 1.0)
    assert np.allclose(held.vector, [0.6, 0.8])
    assert norm(held.vector) <= 1.0


def test_the_input_is_left_alone() -> None:
    vector = np.array([3.0, 4.0])
    clip(vector, 1.0)
    assert vector.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan])
def test_a_bound_is_a_positive_number(bound: float) -> None:
    with pytest.raises(errors.ArgumentValueError, match="norm must be above 0"):
        clip(np.ones(2), bound)
