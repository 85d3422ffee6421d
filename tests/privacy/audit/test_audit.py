"""Audits: known answers, laws, and that they find what is there to find in runs through the real round path."""

import hashlib
import math
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import ArgumentValueError, ExperimentError
from coterie.privacy.audit.binomial import least_chance, most_chance, upper_tails
from coterie.privacy.audit.canaries import Canaries
from coterie.privacy.audit.membership import auc, membership
from coterie.privacy.audit.one_run import (
    CLEAR,
    Audit,
    audit_guesses,
    audit_scores,
    canaries_for,
    epsilon_lower_bound,
    guesses_for,
    highest,
)
from coterie.privacy.audit.verdict import verdict_of
from coterie.protocol.conversion import to_json

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "simulation"))
stats: Any = import_module("scipy.stats")


def stream(name: str) -> Callable[[int], bytes]:
    """Entropy that a test can repeat."""
    state = {"calls": 0}

    def take(count: int) -> bytes:
        state["calls"] += 1
        return hashlib.shake_128(f"{name}/{state['calls']}".encode()).digest(count)

    return take


@pytest.mark.parametrize("place", range(6))
def test_known_answers(known: dict[str, Any], place: int) -> None:
    case = known["one_run"][place]
    found = epsilon_lower_bound(case["canaries"], case["guesses"], case["correct"], case["delta"])
    assert found == pytest.approx(case["epsilon"], abs=6e-5)


def test_tails_are_those_of_the_binomial_distribution() -> None:
    for trials, chance in ((1, 0.5), (20, 0.3), (1000, 0.97)):
        assert upper_tails(trials, chance) == pytest.approx(stats.binom.sf(np.arange(trials + 1) - 1, trials, chance))
    assert upper_tails(3, 0.0).tolist() == [1, 0, 0, 0] and upper_tails(3, 1.0).tolist() == [1, 1, 1, 1]
    for successes, trials in ((0, 10), (3, 10), (10, 10), (77, 100)):
        exact = stats.binomtest(successes, trials).proportion_ci(0.9, method="exact")
        assert least_chance(successes, trials, 0.05) == pytest.approx(exact.low, abs=1e-9)
        assert most_chance(successes, trials, 0.05) == pytest.approx(exact.high, abs=1e-9)


@given(st.integers(1, 60), st.data())
def test_more_right_guesses_prove_more_and_more_delta_less(guesses: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(1, guesses))
    bound = epsilon_lower_bound(100, guesses, correct, 1e-5)
    assert 0 <= epsilon_lower_bound(100, guesses, correct - 1, 1e-5) <= bound <= 20
    assert epsilon_lower_bound(100, guesses, correct, 1e-3) <= bound
    assert epsilon_lower_bound(100, guesses, correct, 1e-5, confidence=0.99) <= bound


def test_guessing_blindly_proves_nothing() -> None:
    assert epsilon_lower_bound(1000, 100, 50, 1e-5) == 0
    wrong = [(10, 11, 5, 0.0), (10, 5, 6, 0.0), (10, 0, 0, 0.0), (10, 5, 5, 1.0), (10, 5, 5, -0.1)]
    for canaries, guesses, correct, delta in wrong:
        with pytest.raises(ArgumentValueError):
            epsilon_lower_bound(canaries, guesses, correct, delta)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.5, 1.0, 2.0]))
def test_a_mechanism_that_keeps_its_promise_is_seldom_accused(seed: int, epsilon: float) -> None:
    """Randomised response of each coin is the worst that ε allows; the bound exceeds it in fewer than 5 of 100 runs, by
    much in none.
    """
    random = np.random.default_rng(seed)
    coins = random.random(400) < 0.5
    told = np.where(random.random(400) < 1 / (1 + math.exp(-epsilon)), coins, ~coins)
    found = audit_scores((told + random.random(400) / 2).tolist(), coins.tolist(), 0.0, guesses=400)
    assert found.epsilon < epsilon + 0.4


def test_scores_are_guessed_from_both_ends() -> None:
    coins = [True] * 10 + [False] * 10
    found = audit_scores([*range(20, 0, -1)], coins, 0.0, guesses=20, claimed=1.0)
    assert (found.correct, found.guesses, found.verdict) == (20, 20, "refuted")
    assert found.epsilon == found.cap
    blind = audit_scores([0.0] * 20, coins[::2] + coins[1::2], 0.0, guesses=10, claimed=0.5)
    assert blind.verdict == "not refuted" and blind.epsilon == 0
    assert Audit(10, 5, 5, 0.0, 0.95, 3.0, 3.0).verdict is None
    for scores in ([1.0], [math.nan, 1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(ArgumentValueError):
            audit_scores(scores, [True, False], 0.0)


def test_a_claim_above_the_cap_is_nothing_that_an_audit_can_tell_of() -> None:
    """A hundred canaries and a third of guesses prove 2.38 at most: of ε = 4 they say nothing, right or wrong."""
    assert highest(100, 34, 1e-5) == pytest.approx(2.38, abs=0.01)
    for correct in (0, 17, 34):
        found = audit_guesses(100, 34, correct, 1e-5, claimed=4.0)
        assert found.verdict == "cannot tell" and to_json(found)["verdict"] == "cannot tell"
    assert audit_guesses(100, 34, 34, 1e-5, claimed=2.0).verdict == "refuted"
    assert audit_guesses(100, 34, 20, 1e-5, claimed=2.0).verdict == "not refuted"
    assert [verdict_of(*numbers) for numbers in ((1, 9, 2), (3, 9, 2), (1, 2, 2), (1, 1.5, 2), (0, 0, None))] == [
        "not refuted",
        "refuted",
        "cannot tell",
        "cannot tell",
        None,
    ]


@pytest.mark.parametrize("claimed", [0.5, 1.0, 2.0, 4.0])
def test_canaries_and_guesses_are_chosen_for_the_claim(claimed: float) -> None:
    count = canaries_for(claimed, 1e-6)
    guesses = guesses_for(count, 1e-6, claimed)
    assert guesses <= count and highest(count, guesses, 1e-6) > CLEAR * claimed
    # Where canaries are given, more of them are guessed if it takes that.
    few = guesses_for(100, 1e-6, 2.6)
    assert few > guesses_for(100, 1e-6, None) == 34
    assert highest(100, few, 1e-6) > CLEAR * 2.6 >= highest(100, few - 1, 1e-6)
    assert guesses_for(100, 1e-6, 9.0) == 100
    assert canaries_for(None, 1e-6) == 200 and canaries_for(4.0, 1e-6) > canaries_for(1.0, 1e-6)
    # Each canary costs δ: where none suffice, those that see farthest are taken.
    assert canaries_for(9.0, 1e-3) < 1000


def test_canaries_are_drawn_from_entropy_and_orthogonal() -> None:
    marked = Canaries.toss(64, entropy=stream("a"))
    assert marked == Canaries.toss(64, entropy=stream("a")) != Canaries.toss(64, entropy=stream("b"))
    assert Canaries.toss(64).seed != Canaries.toss(64).seed
    assert 10 < sum(marked.included) < 54
    for size in (65, 128, 5001):
        directions = np.array([marked.direction(number, size) for number in range(64)])
        assert directions @ directions.T == pytest.approx(np.eye(64), abs=1e-12)
        vector = np.random.Generator(np.random.PCG64(size)).normal(size=size)
        assert marked.scores(vector) == pytest.approx(directions @ vector, abs=1e-11)
    # No direction is a coordinate: of none is more than twice the mean square.
    assert (directions**2).max() < 2.001 / 5001
    for count in (0, 19, 100_001):
        with pytest.raises(ArgumentValueError, match="canaries"):
            Canaries.toss(count)
    for act in (lambda: marked.direction(0, 64), lambda: marked.scores(np.zeros(64))):
        with pytest.raises(ArgumentValueError, match="64 canaries need a model of more weights"):
            act()


@pytest.mark.parametrize("multiplier", [0.05, 20.0])
def test_a_noisy_sum_is_told_from_one_without_noise(multiplier: float) -> None:
    """A sum of canaries with much noise proves nothing; one with almost none refutes a claim of ε = 1."""
    size, marked = 20_000, Canaries.toss(200, entropy=stream("noise"))
    total = np.sum([marked.direction(number, size) for number in range(200) if marked.included[number]], axis=0)
    noise = np.random.default_rng(5).normal(0, multiplier, size)
    found = audit_scores(marked.scores(total + noise).tolist(), marked.included, 1e-5, claimed=1.0)
    assert found.verdict == ("not refuted" if multiplier > 1 else "refuted")
    assert (found.epsilon > 2) == (multiplier < 1)


def test_the_curve_counts_pairs() -> None:
    assert auc([3, 4], [1, 2]) == 1 and auc([1, 2], [3, 4]) == 0 and auc([1, 2], [1, 2]) == 0.5
    inside, outside = np.random.default_rng(0).normal(size=(2, 60)).round(1)
    pairs = [(a > b) + 0.5 * (a == b) for a in inside for b in outside]
    assert auc(inside.tolist(), outside.tolist()) == pytest.approx(np.mean(pairs))


def test_membership_proves_nothing_of_equals_and_much_of_opposites() -> None:
    random = np.random.default_rng(1)
    blind = membership(random.normal(size=500).tolist(), random.normal(size=500).tolist())
    assert abs(blind.auc - 0.5) < 0.06 and blind.epsilon < 0.5
    told = membership(random.normal(8, 1, 500).tolist(), random.normal(0, 1, 500).tolist())
    assert told.auc > 0.99 and told.true_positive_rate > 0.99 and told.epsilon > 2
    parted = membership([1.0] * 500, [0.0] * 500)
    assert parted.epsilon == pytest.approx(parted.cap) and parted.cap == blind.cap >= told.epsilon
    assert [blind.verdict(claim) for claim in (None, 1.0, 9.0)] == [None, "not refuted", "cannot tell"]
    with pytest.raises(ArgumentValueError):
        membership([1.0, 2.0], [1.0] * 9)


# Through the real round path.


def _kit() -> Any:
    """The simulation's small experiment."""
    return import_module("simulation_kit")


def _experiment(**changes: Any) -> Any:
    return _kit().experiment(**changes)


def _runs(privacy: Any, *, secure: bool, rounds: int = 2) -> Any:
    from coterie.compute.nn.zoo import mlp
    from coterie.protocol.rounds import RoundPolicy

    policy = RoundPolicy(rounds=rounds, cohort=40, min_updates=20, weight_cap=1, evaluate_every=0, deadline_s=60.0)
    return _experiment(
        model=mlp((4, 400, 3)), rounds=policy, privacy=privacy, secure_aggregation=None if secure else False, epochs=1
    )


@pytest.mark.parametrize("secure", [False, True], ids=["open", "secure"])
def test_canaries_are_found_where_there_is_no_noise_and_a_claim_is_refuted(secure: bool) -> None:
    from coterie.simulation.canaries import audit_by_canaries

    found = audit_by_canaries(
        _runs(None, secure=secure),
        [_kit().rows(20, seed) for seed in range(5)],
        norm=5.0,
        claimed=1.0,
        entropy=stream("open"),
    )
    assert len(found.history.committed) == found.rounds == 2
    assert found.verdict == "refuted" and found.cap >= found.epsilon > 1.0
    assert found.marks is None and found.guesses is not None and found.because is None


def test_members_of_an_overfit_model_are_told_and_those_of_a_private_one_are_not() -> None:
    from coterie.compute.nn.zoo import mlp
    from coterie.compute.optim import sgd
    from coterie.protocol.privacy import UserLevel
    from coterie.protocol.rounds import RoundPolicy
    from coterie.simulation.members import infer_members
    from coterie.simulation.simulation import simulate_full

    random = np.random.Generator(np.random.PCG64(3))
    # Labels that nothing can be learned from, only by heart.
    clients = [
        {"x": random.normal(size=(60, 4)).astype(np.float32), "y": random.integers(0, 3, 60).astype(np.int32)}
        for _ in range(2)
    ]
    policy = RoundPolicy(rounds=12, cohort=2, weight_cap=1, evaluate_every=0)
    common: dict[str, Any] = {"model": mlp((4, 256, 3)), "rounds": policy, "holdout": 0.5, "optimizer": sgd(0.5)}
    overfit = _experiment(**common, epochs=100)
    found = infer_members(simulate_full(overfit, clients), overfit, clients)
    assert found.auc > 0.7
    private = _experiment(**common, epochs=100, privacy=UserLevel(clip=0.5, delta=1e-3, epsilon=1.0))
    hidden = infer_members(simulate_full(private, clients), private, clients)
    assert abs(hidden.auc - 0.5) < 0.1
    bare = _experiment(**{**common, "holdout": 0.0, "rounds": policy}, epochs=1)
    with pytest.raises(ExperimentError, match="hold out"):
        infer_members(simulate_full(bare, clients), bare, clients)
