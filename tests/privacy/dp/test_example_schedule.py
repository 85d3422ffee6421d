"""Noise of `ExampleLevel` that differs by round: what it costs, against the same noise throughout, against sums of
Rényi divergences and against losses convolved here by hand.
"""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import ExperimentError, InputError
from coterie.privacy.dp import schedules
from coterie.privacy.dp.accounting import total_cost
from coterie.privacy.dp.events import SampledGaussian, merged
from coterie.privacy.dp.rounds import Draws, multiplier, round_cost, whole_cost
from coterie.privacy.dp.statement import statement
from coterie.protocol.privacy import ExampleLevel

DRAWS = Draws(rate=0.05, steps=20)
FAILING = Draws(rate=0.05, steps=20, failure=1e-8)
DELTA = 1e-5
FACTORS = (1.5, 1.5, 1.0, 0.75, 0.75, 0.5)


def level(**changes: Any) -> ExampleLevel:
    told: dict[str, Any] = {"clip": 1.0, "delta": DELTA, "noise_multiplier": 1.2, "rows": 1000} | changes
    return ExampleLevel(**told)


def price(asked: ExampleLevel, rounds: int, draws: Draws = DRAWS) -> float:
    return total_cost(whole_cost(asked, rounds, cohort=1, draws=draws), DELTA).epsilon


@pytest.mark.parametrize("draws", [DRAWS, FAILING], ids=["exact", "overflowing"])
def test_equal_factors_are_the_constant_case(draws: Draws) -> None:
    constant = whole_cost(level(), 6, cohort=1, draws=draws)
    assert whole_cost(level(schedule=(1.0,) * 6), 6, cohort=1, draws=draws) == constant
    halved = whole_cost(level(schedule=(0.5,) * 6), 6, cohort=1, draws=draws)
    assert halved == whole_cost(level(noise_multiplier=0.6), 6, cohort=1, draws=draws)


def test_each_round_costs_its_own_and_all_rounds_their_sum() -> None:
    asked = level(schedule=FACTORS)
    found = [round_cost(asked, n, 6, released=range(1, n), cohort=1, draws=FAILING) for n in range(1, 7)]
    for factor, events in zip(FACTORS, found, strict=True):
        assert events[0] == SampledGaussian(1.2 * factor, 0.05, 20)
    whole = whole_cost(asked, 6, cohort=1, draws=FAILING)
    assert merged([event for events in found for event in events]) == merged(whole)
    assert price(level(noise_multiplier=1.2 * 1.5), 6) < price(asked, 6) < price(level(noise_multiplier=1.2 * 0.5), 6)


def renyi(sigma: float, rate: float, order: int) -> float:
    """Of one step, for whole orders: Mironov, Talwar and Zhang (2019), equation 3."""
    terms = [
        math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
        + (order - k) * math.log1p(-rate) + k * math.log(rate) + (k * k - k) / (2 * sigma**2)
        for k in range(order + 1)
    ]  # fmt: skip
    return float(np.logaddexp.reduce(terms)) / (order - 1)


def test_renyi_divergences_of_the_rounds_add_up() -> None:
    def epsilon(order: int) -> float:
        total = sum(20 * renyi(1.2 * factor, 0.05, order) for factor in FACTORS)
        # Canonne, Kamath and Steinke (2020), proposition 12.
        return total + math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1)

    expected = min(map(epsilon, range(2, 200)))
    found = total_cost(whole_cost(level(schedule=FACTORS), 6, cohort=1, draws=DRAWS), DELTA, accountant="rdp").epsilon
    assert 0.98 * expected <= found <= expected * (1 + 1e-9)


def convolved(sigmas: list[tuple[float, int]], rate: float) -> float:
    """ε at DELTA by Fourier transforms of the loss of each step on a grid, in the worse of both directions."""
    width, size = 2e-4, 1 << 18
    both: list[float] = []
    for removed in (True, False):
        spectrum = np.ones(size // 2 + 1, np.complex128)
        for sigma, steps in sigmas:
            x = np.linspace(-14 * sigma, 1 + 14 * sigma, 400_001)
            without = np.exp(-(x**2) / (2 * sigma**2))
            with_row = (1 - rate) * without + rate * np.exp(-((x - 1) ** 2) / (2 * sigma**2))
            above, below = (with_row, without) if removed else (without, with_row)
            loss = np.log(above) - np.log(below)
            mass = above / above.sum()
            places = np.rint(loss / width).astype(np.int64) % size
            spectrum *= np.fft.rfft(np.bincount(places, mass, size)) ** steps
        masses = np.fft.irfft(spectrum, size)
        losses = width * np.where(np.arange(size) < size // 2, np.arange(size), np.arange(size) - size)
        low, high = 0.0, 20.0
        for _ in range(50):
            middle = (low + high) / 2
            kept = losses > middle
            delta = float(np.sum(masses[kept] * -np.expm1(middle - losses[kept])))
            low, high = (low, middle) if delta <= DELTA else (middle, high)
        both.append(high)
    return max(both)


def test_losses_of_the_rounds_are_convolved() -> None:
    pytest.importorskip("dp_accounting")
    expected = convolved([(1.2 * factor, 20) for factor in FACTORS], 0.05)
    found = total_cost(whole_cost(level(schedule=FACTORS), 6, cohort=1, draws=DRAWS), DELTA)
    assert found.method == "pld"
    assert found.epsilon == pytest.approx(expected, rel=5e-3)


@settings(max_examples=5, deadline=None)
@given(order=st.permutations(range(6)))
def test_the_order_of_the_factors_makes_no_difference(order: list[int]) -> None:
    shuffled = tuple(FACTORS[place] for place in order)
    assert price(level(schedule=shuffled), 6) == price(level(schedule=FACTORS), 6)


@pytest.mark.usefixtures("by_renyi")
def test_noise_for_an_epsilon_keeps_all_rounds_within_it() -> None:
    asked = ExampleLevel(clip=1.0, delta=DELTA, epsilon=2.0, rows=1000, schedule=(1.5, 0.5))
    found = price(asked, 2)
    assert 1.99 < found <= 2.0
    told = statement(asked, 2, cohort=1, draws=DRAWS)
    first, last = (multiplier(asked, 2, DRAWS) * factor for factor in (1.5, 0.5))
    assert f"{first:.4g} in the first round, {last:.4g} in the last" in told.mechanism


def test_rules_of_decay_are_schedules() -> None:
    factors = schedules.step_decay(6, 0.5, every=3)
    assert price(level(schedule=factors), 6) > price(level(), 6)


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ((), "/schedule: "),
        ((1.0, 0.0), "/schedule/1: Input should be greater than 0"),
        ((1.0, -1.0), "/schedule/1: Input should be greater than 0"),
        ((1.0, math.nan), "/schedule/1: Input should be a finite number"),
        ((math.inf,), "/schedule/0: "),
        ((1e-4, 1.0), "within 1000 times each other"),
        (tuple(1 + n / 100 for n in range(65)), "65 different factors"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(factors: tuple[float, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        level(schedule=factors)


def test_a_schedule_of_another_number_of_rounds_is_refused() -> None:
    for asked in (level(schedule=FACTORS), level(schedule=FACTORS, noise_multiplier=None, epsilon=2.0)):
        with pytest.raises(ExperimentError, match="ExampleLevel: schedule has 6 factors for 5 rounds"):
            whole_cost(asked, 5, cohort=1, draws=DRAWS)
