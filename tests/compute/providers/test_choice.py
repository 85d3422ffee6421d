"""The provider of a step is chosen by its measured time, and only among those whose step is the CPU's."""

from collections.abc import Callable
from itertools import count
from math import isinf

import pytest

from coterie.compute.runtime.choice import ADVANTAGE, COMPARED, Timing, fastest, timings
from coterie.compute.runtime.devices import Provider, provider_named
from coterie.compute.runtime.session import CPU
from tests.compute.providers.fakes import failing, made, off
from tests.compute.providers.steps import case

CPU_PROVIDER = provider_named(CPU)


def test_the_clock_decides() -> None:
    slow = made("Slow", sleep=0.003)
    found = timings(case(), [slow, CPU_PROVIDER])
    assert [timing.provider.name for timing in found] == [CPU, "Slow"] and not any(t.fault for t in found)
    assert found[1].seconds >= 0.003 > found[0].seconds
    assert fastest(found).provider.name == CPU


def test_wrong_failing_and_absent_providers_are_never_chosen() -> None:
    bad = [made("Wrong", off), failing("Frail", 2), Provider("NoSuchProvider", "1")]
    found = timings(case(), bad)
    assert [(timing.provider.name, isinf(timing.seconds), timing.wrong) for timing in found[1:]] == [
        ("Wrong", True, True),
        ("Frail", True, True),
        ("NoSuchProvider", True, False),
    ]
    assert "from the CPU's" in found[1].fault and "device is lost" in found[2].fault and "no provider" in found[3].fault
    assert fastest(found) == found[0]


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [(ADVANTAGE * 0.99, "Other"), (ADVANTAGE, CPU), (1.0, CPU), (2.0, CPU)],
)
def test_bits_are_not_given_up_for_a_draw(seconds: float, chosen: str) -> None:
    listed = [Timing(CPU_PROVIDER, 1.0), Timing(Provider("Other", "1"), seconds)]
    assert fastest(listed).provider.name == chosen
    assert fastest(listed[::-1]).provider.name == chosen


def ticking(step: float) -> Callable[[], float]:
    ticks = count()
    return lambda: next(ticks) * step


def test_a_slow_step_is_not_measured_for_long() -> None:
    runs = count()
    counted = made("Counted", lambda results: (next(runs), results)[1])
    timings(case(), [counted], clock=ticking(0.6))
    assert next(runs) == COMPARED + 1  # and one of a second's length
