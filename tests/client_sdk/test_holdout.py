"""The laws of the hold-out split."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coterie.client_sdk.device.holdout import held_out, split

SHARES = st.floats(0, 0.999)


@given(st.integers(1, 500), st.integers(0, 500), SHARES)
def test_rows_appended_later_change_nothing_for_those_before(count: int, more: int, share: float) -> None:
    before, after = held_out(count, share), held_out(count + more, share)
    # The one exception: a set that would be held out whole gives its first row to training.
    assert np.array_equal(before[1:], after[1:count])


@given(st.integers(1, 500), SHARES)
def test_every_row_is_on_one_side_and_one_at_least_is_trained_on(count: int, share: float) -> None:
    train, held = split({"x": np.arange(count), "y": -np.arange(count)}, share)
    assert sorted([*train["x"], *held["x"]]) == list(range(count))
    assert np.array_equal(train["x"], -train["y"]) and np.array_equal(held["x"], -held["y"])
    assert len(train["x"]) >= 1


def test_about_the_share_is_held_out_and_not_in_step_with_any_period() -> None:
    mask = held_out(10_000, 0.2)
    assert abs(mask.mean() - 0.2) < 0.02
    for period in (2, 5, 10):
        means = [mask[start::period].mean() for start in range(period)]
        assert max(means) - min(means) < 0.06


def test_the_choice_is_the_same_on_every_machine() -> None:
    assert np.flatnonzero(held_out(40, 0.25)).tolist() == GOLDEN


GOLDEN = [2, 4, 6, 8, 18, 31, 32, 33, 37]
