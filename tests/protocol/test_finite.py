"""Every place of a long vector is looked at, and nothing finite is taken for what is not."""

from typing import Any

import numpy as np
import pytest

from coterie.protocol.finite import all_finite

LENGTH = (1 << 17) + 7


@pytest.mark.parametrize("at", [0, LENGTH // 2, LENGTH - 1])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found_wherever_it_stands(at: int, value: float) -> None:
    vector = np.ones(LENGTH, np.float32)
    vector[at] = value
    assert not all_finite(vector)


def test_infinities_do_not_cancel() -> None:
    assert not all_finite(np.array([np.inf, -np.inf], np.float32))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_largest_numbers_are_finite_though_their_sum_is_not(dtype: type[np.floating[Any]]) -> None:
    largest = np.full(LENGTH, np.finfo(dtype).max)
    with np.errstate(all="raise"):
        assert all_finite(largest) and all_finite(-largest)
        largest[-1] = np.inf
        assert not all_finite(largest)


def test_no_number_and_whole_numbers_are_finite() -> None:
    assert all_finite(np.zeros(0, np.float32)) and all_finite(np.arange(5))
