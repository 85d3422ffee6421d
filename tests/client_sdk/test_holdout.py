"""The hold-out split of arrays; which rows it takes is `coterie.draws`."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coterie.client_sdk.device.holdout import split

SHARES = st.floats(0, 0.999)


@given(st.integers(1, 500), SHARES)
def test_every_row_is_on_one_side_and_one_at_least_is_trained_on(count: int, share: float) -> None:
    train, held = split({"x": np.arange(count), "y": -np.arange(count)}, share)
    assert sorted([*train["x"], *held["x"]]) == list(range(count))
    assert np.array_equal(train["x"], -train["y"]) and np.array_equal(held["x"], -held["y"])
    assert len(train["x"]) >= 1
