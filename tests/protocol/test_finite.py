"""Every place of a long vector is looked at, and nothing finite is taken for what is not."""

import numpy as np
import pytest

from coterie.protocol.finite import BLOCK, all_finite


@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK, 2 * BLOCK + 6])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found_wherever_it_stands(at: int, value: float) -> None:
    vector = np.ones(2 * BLOCK + 7, np.float32)
    vector[at] = value
    assert not all_finite(vector)


def test_the_largest_numbers_and_no_number_are_finite() -> None:
    assert all_finite(np.full(BLOCK + 1, np.finfo(np.float32).max))
    assert all_finite(np.zeros(0, np.float32)) and all_finite(np.arange(5))
