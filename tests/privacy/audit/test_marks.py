"""The judgement of canaries' marks: the distribution, the filter, the rates at which it is wrong and right."""

import math
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from coterie.errors import ArgumentValueError
from coterie.privacy.audit.gaussian import FEWEST, CanaryParameters, Marks, enough_canaries, judge_marks
from coterie.privacy.audit.student import critical, least_shift, upper_tail
from coterie.privacy.audit.whitening import CanaryScores, even_scales, expected_strengths, matched, whitening
from coterie.privacy.dp import normal
from coterie.privacy.dp.matrix.factorisation import factorisation
from coterie.privacy.dp.noise import gaussian
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.privacy.dp.rounds import round_noise
from coterie.protocol.privacy import UserLevel

stats: Any = import_module("scipy.stats")
DELTA = 1e-5


def test_tails_are_those_of_the_noncentral_t_distribution() -> None:
    for freedom, shift in ((3, 0.0), (19, 2.0), (63, 0.7), (700, 5.0), (2000, 180.0)):
        for statistic in (0.0, shift, 1.1 * shift + 2):
            exact = stats.nct.sf(statistic, freedom, shift) if shift else stats.t.sf(statistic, freedom)
            assert upper_tail(statistic, freedom, shift) == pytest.approx(exact, rel=1e-9, abs=1e-12)
        limit = critical(freedom, shift, 0.025)
        exact = stats.nct.isf(0.025, freedom, shift) if shift else stats.t.isf(0.025, freedom)
        assert limit == pytest.approx(exact, rel=1e-7)
        assert least_shift(limit, freedom, 0.025) == pytest.approx(shift, abs=1e-6)
    # Nothing is proven of a mark on the wrong side, and what is huge stays finite.
    assert least_shift(-3.0, 10, 0.025) == least_shift(0.0, 10, 0.025) == 0
    assert 9e6 < least_shift(1e300, 700, 0.025) < 1e7
    for wrong in ((-1.0, 10), (1.0, 0), (math.nan, 10)):
        with pytest.raises(ArgumentValueError):
            upper_tail(*wrong, 0.0)


def test_a_bound_of_known_numbers_is_the_known_one() -> None:
    """Values that were chosen so that T and its degrees are known: the bound is scipy's."""
    coins = np.array([True] * 50 + [False] * 50)
    noise = np.tile([1.0, -1.0], 50)
    seen = CanaryScores(np.where(coins, 0.8, 0.0) + noise, np.full(100, 0.9))
    terms = CanaryParameters(delta=DELTA, claimed=1.0, halved=1.8, unnoised=30.0, confidence=0.975)
    found = judge_marks(seen, coins, terms)
    slope = 0.8 * math.sqrt(50)
    statistic = slope / math.sqrt((100 + 50 * 0.64 - slope**2) / 99)
    tail: float = stats.nct.sf(statistic, 99, found.least * math.sqrt(50))
    assert tail == pytest.approx(0.025, rel=1e-6)
    assert found.ratio == pytest.approx(statistic / math.sqrt(50))
    assert found.epsilon == pytest.approx(normal.epsilon_of(found.least, DELTA)) and found.cap > 100
    limit: float = stats.nct.isf(0.025, 99, normal.mu_of(1.0, DELTA) * math.sqrt(50))
    power: float = stats.nct.sf(limit, 99, 1.8 * math.sqrt(50))
    assert found.power == pytest.approx(power, rel=1e-6)


def test_canaries_that_were_never_chosen_say_nothing() -> None:
    coins = np.array([True, False] * 40)
    values = np.where(coins, 2.0, 0.0) + np.tile([0.5, 0.5, -0.5, -0.5], 20)
    terms = CanaryParameters(delta=DELTA, claimed=None, halved=1.0, unnoised=9.0, confidence=0.975)
    whole = judge_marks(CanaryScores(values, np.ones(80)), coins, terms)
    strengths = np.concatenate([np.ones(80), np.zeros(20)])
    more = CanaryScores(np.concatenate([values, np.zeros(20)]), strengths)
    assert judge_marks(more, np.concatenate([coins, [True] * 20]), terms) == whole
    assert whole.power is None
    nobody = judge_marks(CanaryScores(values, np.ones(80)), np.zeros(80, np.bool_), terms)
    assert (nobody.epsilon, nobody.cap, nobody.least) == (0, 0, 0)
    with pytest.raises(ArgumentValueError):
        judge_marks(CanaryScores(np.array([np.nan, 1.0]), np.ones(2)), np.array([True, False]), terms)


def test_no_bound_is_above_the_cap() -> None:
    coins = np.arange(64) % 2 == 0
    terms = CanaryParameters(delta=DELTA, claimed=1.0, halved=2.0, unnoised=0.2, confidence=0.975)
    found = judge_marks(CanaryScores(np.where(coins, 1.0, 0.0), np.ones(64)), coins, terms)
    assert found.epsilon == found.cap < 1


@pytest.mark.parametrize(("epsilon", "least", "most"), [(0.5, 1500, 3500), (1.0, 500, 1000), (4.0, 64, 150)])
def test_a_smaller_claim_needs_more_canaries(epsilon: float, least: int, most: int) -> None:
    mu = normal.mu_of(epsilon, DELTA)

    def enough(halved: float, strength: float = 1.0) -> int:
        return enough_canaries(
            claimed=epsilon, delta=DELTA, halved=halved, strength=strength, confidence=0.975, most=3000
        )

    assert least <= enough(2 * mu) <= most
    assert enough(2 * mu) <= enough(2 * mu, strength=0.5)
    assert enough(mu) == 3000
    assert enough(50.0) == FEWEST


PRIVACY = {
    "same": UserLevel(clip=1.0, delta=DELTA, epsilon=2.0),
    "schedule": UserLevel(clip=1.0, delta=DELTA, epsilon=2.0, schedule=(1.0, 2.0, 0.5, 1.5, 1.0, 1.0)),
    "toeplitz": UserLevel(clip=1.0, delta=DELTA, epsilon=2.0, mechanism="toeplitz", min_separation=2),
    "banded": UserLevel(clip=1.0, delta=DELTA, epsilon=2.0, mechanism="banded", min_separation=3),
    "blt": UserLevel(clip=1.0, delta=DELTA, epsilon=2.0, mechanism="blt", min_separation=2, max_participations=2),
}


@pytest.mark.parametrize("name", PRIVACY)
def test_whitening_makes_noise_of_all_rounds_independent_and_as_large_as_the_clip(name: str) -> None:
    privacy, size, rounds = PRIVACY[name], 20_000, 6
    white = whitening(privacy, rounds, cohort=10)
    noise: list[np.ndarray] = []
    state = factorisation(privacy, rounds).init(size) if name in ("toeplitz", "banded", "blt") else None
    for round in range(1, rounds + 1):
        deviation = round_noise(privacy, round, rounds, cohort=10).updates
        drawn = gaussian.add(np.zeros(size), deviation, NoiseSource(bytes([round]) * 32))
        if state is not None:
            drawn, state = factorisation(privacy, rounds).next(drawn, state, gaussian.grid(deviation))
        noise.append(drawn)
    spread = np.cov(white @ np.array(noise))
    assert spread == pytest.approx(np.eye(rounds), abs=6 / math.sqrt(size))


@pytest.mark.parametrize("name", PRIVACY)
def test_the_strongest_device_stands_out_by_what_was_accounted(name: str) -> None:
    """Of those that take part in every round they may, from the first: exactly the μ of the whole claim."""
    privacy = PRIVACY[name]
    strengths = expected_strengths(
        whitening(privacy, 6, cohort=10), apart=privacy.min_separation, most=privacy.max_participations or 6
    )
    assert strengths.max() == pytest.approx(normal.mu_of(2.0, DELTA), rel=1e-6)


def test_a_mark_is_found_where_a_canary_was_chosen() -> None:
    random = np.random.Generator(np.random.PCG64(5))
    white = whitening(PRIVACY["blt"], 6, cohort=10)
    there = np.array([[1, 0, 0, 1, 0, 0], [0, 1, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0]], np.bool_)
    noise = np.asarray(np.linalg.solve(white, random.normal(0, 1, (6, 3))).T, np.float64)
    silent, loud = matched(noise, there, white), matched(noise + there, there, white)
    assert loud.values - silent.values == pytest.approx(loud.strengths)
    assert loud.strengths[2] == 0 and (loud.strengths[:2] > 0).all()


def test_rounds_of_another_clip_count_alike() -> None:
    random = np.random.Generator(np.random.PCG64(6))
    coins = np.arange(4000) % 2 == 0
    white = np.diag([0.5, 0.25])
    clips = np.array([3.0, 0.01])
    marks = (random.normal(0, 1, (4000, 2)) * [2.0, 4.0] + coins[:, None]) * clips
    even = even_scales(marks, coins, white)
    assert even[~coins].std(axis=0) == pytest.approx([2.0, 4.0], rel=0.05)
    assert even[coins].mean(axis=0) == pytest.approx([1.0, 1.0], abs=0.35)


def _audits(epsilon: float, factor: float, runs: int) -> list[Marks]:
    """Audits of four rounds of noise from the product's own sampler, this many times as large as it is asked to be."""
    privacy = UserLevel(clip=1.0, delta=DELTA, epsilon=epsilon)
    white, rounds = whitening(privacy, 4, cohort=100), 4
    claimed = normal.mu_of(epsilon, DELTA)
    count = enough_canaries(claimed=epsilon, delta=DELTA, halved=2 * claimed, strength=1.0, confidence=0.975)
    terms = CanaryParameters(delta=DELTA, claimed=epsilon, halved=2 * claimed, unnoised=30.0, confidence=0.975)
    deviation = round_noise(privacy, 1, rounds, cohort=100).updates * factor
    random = np.random.Generator(np.random.PCG64(int(100 * epsilon + 10 * factor)))
    found: list[Marks] = []
    for run in range(runs):
        key = (run + 1000 * round(10 * factor)).to_bytes(32, "big")
        noise = gaussian.add(np.zeros(rounds * count), deviation, NoiseSource(key)).reshape(count, rounds)
        coins = random.random(count) < 0.5
        there = np.ones((count, rounds), np.bool_)
        found.append(judge_marks(matched(noise + coins[:, None], there, white), coins, terms))
    return found


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_halved_noise_is_caught_and_right_noise_is_not_accused(epsilon: float) -> None:
    """In 100 audits each. One of 40 may be accused: nine of 100 would be so once in a thousand times."""
    halved = _audits(epsilon, 0.5, 100)
    assert sum(marks.epsilon > epsilon for marks in halved) >= 97
    true = normal.epsilon_of(2 * normal.mu_of(epsilon, DELTA), DELTA)
    assert sum(marks.epsilon > true for marks in halved) < 9
    assert all(marks.power is not None and marks.power > 0.99 for marks in halved)
    right = _audits(epsilon, 1.0, 100)
    assert sum(marks.epsilon > epsilon for marks in right) < 9
    assert not any(marks.epsilon > epsilon for marks in _audits(epsilon, 2.0, 20))
