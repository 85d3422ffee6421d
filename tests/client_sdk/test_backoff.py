"""The two rules of `coterie.client_sdk.device.backoff`."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.client_sdk.device.backoff import Backoff, Window, after_answer, after_failure
from coterie.errors import ConfigurationError

SECONDS = st.floats(0, 1e5)
WINDOWS = st.tuples(SECONDS, SECONDS).map(lambda pair: Window(min(pair), max(pair)))


@given(WINDOWS, st.integers())
def test_after_an_answer_the_wait_lies_in_the_window(window: Window, seed: int) -> None:
    assert window.start_s <= after_answer(window, random.Random(seed)) <= window.end_s


@given(st.integers(1, 10_000), st.none() | WINDOWS, SECONDS, st.integers())
def test_after_a_failure_the_wait_is_never_below_what_the_coordinator_asked_and_never_above_the_cap_on_top_of_it(
    failures: int, window: Window | None, retry_after: float, seed: int
) -> None:
    backoff = Backoff(base_s=1, cap_s=300)
    floor = max(window.start_s if window else 0.0, retry_after)
    wait = after_failure(failures, backoff, random.Random(seed), window=window, retry_after_s=retry_after)
    assert floor <= wait <= floor + min(300, 2 ** min(failures - 1, 60))


def test_the_jitter_doubles_with_each_failure_until_the_cap_and_uses_its_whole_range() -> None:
    backoff = Backoff(base_s=2, cap_s=20)
    for failures, bound in ((1, 2), (2, 4), (3, 8), (4, 16), (5, 20), (50, 20)):
        waits = [after_failure(failures, backoff, random.Random(seed)) for seed in range(400)]
        assert max(waits) > 0.95 * bound
        assert min(waits) < 0.05 * bound


def test_impossible_numbers_are_refused() -> None:
    for make in (lambda: Backoff(base_s=0), lambda: Backoff(base_s=2, cap_s=1), lambda: Window(3, 1)):
        with pytest.raises(ConfigurationError):
            make()
    with pytest.raises(ConfigurationError):
        after_failure(0, Backoff(), random.Random(0))
