"""The coordinator's noise: what one device can move, what a seed fixes, and what is divided by what."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.aggregation.private.central import CLIP, NOISE, CentralNoise, NoisedMean, clip_of, noised_mean, noised_sum
from coterie.privacy.dp.matrix.factorisation import factorisation
from coterie.privacy.dp.noise import gaussian
from coterie.privacy.dp.rounds import round_noise
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.privacy import AdaptiveClip, UserLevel

SEED = bytes(range(32))
LENGTH = 40
Vectors = Sequence[npt.NDArray[np.float64]]


def terms(
    privacy: UserLevel, *, round: int = 1, rounds: int = 1, expected: int = 5, seed: bytes = SEED
) -> CentralNoise:
    """One round's terms."""
    return CentralNoise(privacy=privacy, round=round, rounds=rounds, expected=expected, seed=seed)


def level(noise: float = 1.0, clip: float = 1.0, **changes: Any) -> UserLevel:
    """User-level privacy by a noise multiplier."""
    return UserLevel(clip=clip, delta=1e-6, noise_multiplier=noise, **changes)


def release(vectors: Vectors, asked: CentralNoise, state: ArraysByName | None = None) -> NoisedMean:
    """One round."""
    return noised_mean(iter(vectors), LENGTH, asked, state or {})


def some(count: int, size: float = 3.0) -> list[npt.NDArray[np.float64]]:
    """Vectors of about this norm, always the same."""
    return [size * np.sin(np.arange(1, LENGTH + 1) * (place + 2)) / math.sqrt(LENGTH / 2) for place in range(count)]


def test_one_vector_moves_the_sum_by_no_more_than_is_accounted_for() -> None:
    """With and without it, by the same seed, so that the noise is equal and what is left is its part."""
    asked = terms(level(noise=2.0, clip=0.7))
    deviation = 2.0 * gaussian.sensitivity(0.7, 1.4, LENGTH)
    for extra in (1e-3, 0.7, 1e6, 1e300):
        vectors = some(4)
        with_it = release([*vectors, np.full(LENGTH, extra)], asked).mean * 5
        moved = float(np.linalg.norm(with_it - release(vectors, asked).mean * 5))
        assert moved <= deviation / 2.0
        assert moved == pytest.approx(min(extra * math.sqrt(LENGTH), 0.7), rel=1e-4)


@given(
    st.lists(
        st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=LENGTH, max_size=LENGTH),
        min_size=0,
        max_size=4,
    )
)
@settings(max_examples=40)
def test_whatever_is_sent_the_release_is_finite_and_bounded(rows: list[list[float]]) -> None:
    asked = terms(level(noise=0.01, clip=1.0))
    mean = release([np.array(row) for row in rows], asked).mean
    noise = release([], asked).mean
    assert np.isfinite(mean).all()
    assert np.linalg.norm((mean - noise) * 5) <= len(rows) * 1.001


def test_a_vector_that_is_not_finite_is_zeros() -> None:
    asked = terms(level())
    for wrong in (math.nan, math.inf, -math.inf):
        bad = some(1)[0].copy()
        bad[3] = wrong
        assert release([*some(2), bad], asked).mean.tobytes() == release(some(2), asked).mean.tobytes()


def test_a_seed_fixes_the_release_in_any_order() -> None:
    vectors = some(6)
    once = release(vectors, terms(level())).mean
    assert release(vectors[::-1], terms(level())).mean.tobytes() == once.tobytes()
    other = release(vectors, terms(level(), seed=bytes(32))).mean
    assert not np.isclose(once, other).any()


def test_the_divisor_is_public() -> None:
    """However many came."""
    for count in (0, 1, 6):
        few = release(some(count), terms(level(noise=1e-4), expected=10)).mean
        want = sum((vector / max(1.0, float(np.linalg.norm(vector))) for vector in some(count)), np.zeros(LENGTH)) / 10
        assert np.abs(few - want).max() < 1e-4


def test_the_noise_has_the_deviation_that_is_claimed() -> None:
    asked = level(noise=1.5, clip=0.2)
    mean = noised_mean(iter(()), 200_000, terms(asked, expected=1), {}).mean
    assert float(mean.std()) == pytest.approx(0.3, rel=0.01)
    assert abs(float(mean.mean())) < 0.003
    step = gaussian.grid(float(mean.std()))
    assert (np.rint(mean / step) == mean / step).all(), "no bit below the grid"


def test_noise_decays_as_the_schedule_says() -> None:
    asked = level(noise=1.0, schedule=(2.0, 0.5))
    sizes = [
        float(noised_mean(iter(()), 100_000, terms(asked, round=round, rounds=2, expected=1), {}).mean.std())
        for round in (1, 2)
    ]
    assert sizes == [pytest.approx(2.0, rel=0.02), pytest.approx(0.5, rel=0.02)]


def test_an_adaptive_clip_finds_the_norms() -> None:
    """From far below and far above to where half of the updates are shortened."""
    sizes = np.linspace(1.0, 3.0, 400)
    vectors = [np.full(LENGTH, size / math.sqrt(LENGTH)) for size in sizes]
    for start in (0.05, 50.0):
        asked = level(noise=0.5, clip=start, adaptive=AdaptiveClip(rate=0.5, bits_noise=20.0))
        state: ArraysByName = {}
        for round in range(1, 41):
            found = release(
                vectors, terms(asked, round=round, rounds=40, expected=400, seed=bytes([round] * 32)), state
            )
            state = found.state
        assert 1.7 < float(state[CLIP][0]) < 2.3
        assert clip_of(terms(asked, expected=400), state) == float(state[CLIP][0])


@pytest.mark.parametrize("mechanism", ["toeplitz", "banded", "blt"])
def test_correlated_noise_is_the_factorisation_of_independent_noise(mechanism: str) -> None:
    """C times the noise that was released is white, of the deviation that is accounted for; a round without a release
    in between takes its row.
    """
    rounds, passed = 6, 3
    asked = level(noise=1.0, mechanism=mechanism, min_separation=2, max_participations=2)
    state: ArraysByName = {}
    released: dict[int, npt.NDArray[np.float64]] = {}
    size = 20_000
    for round in range(1, rounds + 1):
        if round == passed:
            continue
        one = terms(asked, round=round, rounds=rounds, expected=1, seed=bytes([round] * 32))
        found = noised_mean(iter(()), size, one, state)
        released[round], state = found.mean, found.state
        assert all(name.startswith(NOISE) for name in state)
    plan = factorisation(asked, rounds)
    column = plan.first_column()
    first_two = released[2] + column[1] * released[1]
    want = round_noise(asked, 1, rounds, cohort=1).updates
    assert float(released[1].std()) == pytest.approx(want, rel=0.03)
    assert float(first_two.std()) == pytest.approx(want, rel=0.03)
    assert abs(float(np.corrcoef(first_two, released[1])[0, 1])) < 0.03
    assert abs(float(np.corrcoef(released[2], released[1])[0, 1])) > 0.2, "what is released is correlated"
    again = terms(asked, round=rounds, rounds=rounds, expected=1, seed=SEED)
    with pytest.raises(ValueError, match="noise is never used twice"):
        noised_mean(iter(()), size, again, state)


@pytest.mark.parametrize("mechanism", ["gaussian", "toeplitz", "banded", "blt"])
def test_no_round_shows_a_digit_below_the_grid(mechanism: str) -> None:
    """Digits of noise that is correlated would tell what the rounds before drew, and those of a sum itself."""
    asked = level(noise=1.0, mechanism=mechanism, min_separation=2, max_participations=2)
    state: ArraysByName = {}
    for round in range(1, 5):
        one = terms(asked, round=round, rounds=6, expected=1, seed=bytes([round] * 32))
        found = noised_sum(np.sum(some(3), axis=0) / 7, 0.0, one, state)
        state = found.state
        step = gaussian.grid(round_noise(asked, round, 6, cohort=1).updates)
        assert (found.mean / step == np.rint(found.mean / step)).all()


def test_a_sum_that_others_clipped_gets_the_same_noise() -> None:
    vectors = [vector / np.linalg.norm(vector) for vector in some(3)]
    whole = noised_sum(np.sum(vectors, axis=0), 0.0, terms(level()), {}).mean
    assert np.abs(whole - release(vectors, terms(level())).mean).max() < 1e-5


def test_a_seed_is_in_nobodys_log() -> None:
    assert "seed" not in repr(terms(level()))
