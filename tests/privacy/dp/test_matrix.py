"""Matrix mechanisms: known answers, sensitivities against brute force, and streams against matrices."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import ArgumentValueError, ExperimentError, InputError
from coterie.privacy.dp.matrix import blt, toeplitz
from coterie.privacy.dp.matrix.factorisation import Factorisation, NoiseState, factorisation
from coterie.protocol.privacy import UserLevel

Array = npt.NDArray[np.float64]


def user(mechanism: Any, **given: Any) -> UserLevel:
    return UserLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, mechanism=mechanism, **given)


def matrix(column: Array) -> Array:
    """The lower-triangular Toeplitz matrix of a first column."""
    rounds = len(column)
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(rounds)] for i in range(rounds)])


def one(rounds: int) -> Array:
    """The first column of the identity."""
    column = np.zeros(rounds)
    column[0] = 1.0
    return column


def worst(strategy: Array, apart: int, most: int) -> float:
    """The sensitivity by trying every pattern; of non-negative columns all contributions point one way at the worst."""
    rounds = strategy.shape[1]
    best = 0.0
    for count in range(1, most + 1):
        for pattern in itertools.combinations(range(rounds), count):
            if all(after - before >= apart for before, after in itertools.pairwise(pattern)):
                best = max(best, float(np.linalg.norm(strategy[:, pattern].sum(1))))
    return best


def tree_noise(rounds: int) -> float:
    """The baseline: every prefix is a sum of the nodes of a binary tree, each with its own noise. The worst root mean
    square error × sensitivity, for one participation.
    """
    height = math.ceil(math.log2(rounds)) + 1
    return math.sqrt(height * max(bin(prefix).count("1") for prefix in range(1, rounds)))


def max_error(inverse_column: toeplitz.Column) -> float:
    """Root mean square error of the last prefix sum, the worst, for noise of standard deviation 1 in Z."""
    return float(np.linalg.norm(np.cumsum(inverse_column)))


def test_known_answers(known: dict[str, Any]) -> None:
    case = known["toeplitz"]
    rounds = case["rounds"]
    column = toeplitz.square_root(rounds)
    assert column[:6].tolist() == case["column"]
    inverse = toeplitz.inverse(column)
    assert inverse[:6].tolist() == pytest.approx(case["inverse"], abs=1e-15)
    identity = one(rounds)
    for name, first, back in (("square_root", column, inverse), ("identity", identity, identity)):
        once = toeplitz.sensitivity(first, min_separation=rounds, participations=1)
        assert once * max_error(back) == pytest.approx(case[name]["max"], abs=1e-3)
        assert once * toeplitz.mean_error(back) == pytest.approx(case[name]["mean"], abs=1e-3)
    assert tree_noise(rounds) == pytest.approx(case["tree"]["max"], abs=5e-3)


def test_the_square_root_is_one() -> None:
    column = toeplitz.square_root(64)
    assert np.convolve(column, column)[:64] == pytest.approx(np.ones(64))


def test_buffers_come_near_the_best_with_little_memory(known: dict[str, Any]) -> None:
    """Four numbers for each weight: less error in the mean than the square root, which is the best for the last round,
    a third of the tree's.
    """
    rounds = 2048
    fitted = blt.fitted(rounds, 4, rounds, 1)
    column, inverse = fitted.column(rounds), fitted.inverse_column(rounds)
    once = toeplitz.sensitivity(column, min_separation=rounds, participations=1)
    assert once * toeplitz.mean_error(inverse) < known["toeplitz"]["square_root"]["mean"]
    assert once * max_error(inverse) < 1.05 * known["toeplitz"]["square_root"]["max"] < tree_noise(rounds) / 3
    assert inverse == pytest.approx(toeplitz.inverse(column), abs=1e-12)


@pytest.mark.parametrize(("mechanism", "apart", "most"), [("banded", 25, None), ("blt", 25, None), ("blt", 10, 4)])
def test_correlated_noise_beats_independent_noise_for_prefix_sums(mechanism: str, apart: int, most: int | None) -> None:
    rounds = 200
    plan = factorisation(user(mechanism, min_separation=apart, max_participations=most), rounds)
    error = plan.sensitivity * toeplitz.mean_error(toeplitz.inverse(plan.first_column()))
    identity = one(rounds)
    independent = toeplitz.sensitivity(identity, min_separation=apart, participations=most)
    assert error < 0.5 * independent * toeplitz.mean_error(identity)


@settings(max_examples=60)
@given(
    st.lists(st.floats(0, 1), min_size=0, max_size=8),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_sensitivity_is_the_worst_of_all_patterns(falls: list[float], apart: int, most: int) -> None:
    column = np.array([math.prod(falls[:at]) for at in range(len(falls) + 1)], np.float64)
    found = toeplitz.sensitivity(column, min_separation=apart, participations=most)
    assert found == pytest.approx(worst(matrix(column), apart, most), rel=1e-9)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_no_directions_of_contributions_are_worse(seed: int, apart: int) -> None:
    random = np.random.default_rng(seed)
    falls = random.random(7).tolist()
    column = np.array([math.prod(falls[:at]) for at in range(8)], np.float64)
    contributions = np.zeros((8, 5))
    rounds = np.arange(random.integers(0, apart), 8, apart)
    contributions[rounds] = random.normal(size=(len(rounds), 5))
    contributions[rounds] /= np.linalg.norm(contributions[rounds], axis=1, keepdims=True)
    moved = float(np.linalg.norm(matrix(column) @ contributions))
    assert moved <= toeplitz.sensitivity(column, min_separation=apart, participations=None) * (1 + 1e-12)


@pytest.mark.parametrize("column", [[1.0, -0.5], [1.0, 0.5, 0.6], [2.0, 1.0]], ids=range(3))
def test_a_column_without_a_known_sensitivity_is_refused(column: list[float]) -> None:
    with pytest.raises(ArgumentValueError, match="sensitivity"):
        toeplitz.sensitivity(np.array(column), min_separation=1, participations=None)


FINE = 2.0**-40
PLANS: dict[str, Callable[[], Factorisation]] = {
    "toeplitz": lambda: factorisation(user("toeplitz", min_separation=3), 12),
    "banded": lambda: factorisation(user("banded", min_separation=4, bands=3), 12),
    "blt": lambda: factorisation(user("blt", min_separation=3, buffers=3), 12),
    "blt of two rounds": lambda: factorisation(user("blt", min_separation=2), 2),
    "banded, few": lambda: factorisation(user("banded", min_separation=40), 7),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_stream_is_the_inverse_matrix_times_independent_noise(name: str) -> None:
    plan = PLANS[name]()
    independent = np.random.default_rng(7).normal(size=(plan.rounds, 6))
    state, rows = plan.init(6), list[Array]()
    for row in independent:
        noise, following = plan.next(row, state, FINE)
        # A state is a value: the same step from the same state is the same, also after it was written down.
        again, _ = plan.next(row, NoiseState.from_tensors(state.to_tensors()), FINE)
        assert np.array_equal(noise, again)
        rows.append(noise)
        state = following
    assert np.array(rows) == pytest.approx(np.linalg.solve(matrix(plan.first_column()), independent), abs=1e-9)
    with pytest.raises(ArgumentValueError, match=f"for {plan.rounds} rounds"):
        plan.next(independent[0], state, FINE)


@settings(max_examples=40)
@given(st.sampled_from(sorted(PLANS)), st.integers(0, 2**32 - 1), st.sampled_from([2.0**-3, 2.0**-8]))
def test_on_a_grid_one_device_moves_what_was_drawn_by_no_more_than_the_noise_is_made_for(
    name: str, seed: int, step: float
) -> None:
    """Whoever sees all releases and knows everything but one device's contributions asks which independent draws they
    mean with that device and without it: these lie no further apart than the sensitivity on the grid.
    """
    plan, random, size = PLANS[name](), np.random.default_rng(seed), 6
    contributions = np.zeros((plan.rounds, size))
    rounds = np.arange(random.integers(0, plan.min_separation), plan.rounds, plan.min_separation)
    contributions[rounds] = random.normal(size=(len(rounds), size)) if seed % 2 else 1.0
    contributions[rounds] /= np.linalg.norm(contributions[rounds], axis=1, keepdims=True)
    contributions = np.rint(contributions / step) * step
    bound = float(np.linalg.norm(contributions, axis=1).max())
    released = np.rint(4 * random.normal(size=contributions.shape) / step) * step

    def drawn(sums: Array) -> Array:
        found, state = list[Array](), plan.init(size)
        for noise in released - sums:
            without, _ = plan.next(np.zeros(size), state, step)
            again, state = plan.next(noise - without, state, step)
            assert np.array_equal(again, noise), "the draws explain the release"
            found.append(noise - without)
        return np.array(found)

    others = np.rint(random.normal(size=contributions.shape) / step) * step
    moved = float(np.linalg.norm(drawn(others + contributions) - drawn(others)))
    assert moved <= plan.on_grid(bound, size, step)


@pytest.mark.parametrize("name", PLANS)
def test_shares_add_up_and_are_prefixes_of_the_sensitivity(name: str) -> None:
    plan = PLANS[name]()
    shares = plan.shares()
    assert shares.min() >= 0 and shares.sum() == pytest.approx(1)
    for rounds in range(1, plan.rounds + 1):
        prefix = toeplitz.sensitivity(
            plan.first_column()[:rounds], min_separation=plan.min_separation, participations=plan.participations
        )
        assert shares[:rounds].sum() * plan.sensitivity**2 == pytest.approx(prefix**2)


def test_abandoned_rounds_are_rows_that_nobody_sees() -> None:
    plan = PLANS["blt"]()
    rows = np.random.default_rng(3).normal(size=(plan.rounds, 2))
    every, state = list[Array](), plan.init(2)
    for row in rows:
        noise, state = plan.next(row, state, FINE)
        every.append(noise)
    state = plan.init(2)
    for round in (2, 3, 7, 12):
        noise, state = plan.catch_up(round, state, lambda at: rows[at - 1], FINE)
        assert np.array_equal(noise, every[round - 1])
    with pytest.raises(ArgumentValueError, match="never used twice"):
        plan.catch_up(12, state, lambda at: rows[at - 1], FINE)


def test_what_is_no_state_is_refused() -> None:
    good = PLANS["blt"]().init(2).to_tensors()
    for broken in ({}, {**good, "noise.held": np.zeros(3)}, {**good, "noise.step": np.zeros(2, np.int64)}):
        with pytest.raises(InputError) as caught:
            NoiseState.from_tensors(broken)
        assert caught.value.reason == "noise_state_invalid"
    with pytest.raises(ArgumentValueError, match="numbers"):
        PLANS["blt"]().next(np.zeros(3), PLANS["blt"]().init(2), FINE)


def test_mechanisms_without_a_matrix_are_refused() -> None:
    for privacy, rounds in ((user("gaussian"), 3), (user("blt", min_separation=3), 10**6)):
        with pytest.raises(ExperimentError, match="has no matrix"):
            factorisation(privacy, rounds)
