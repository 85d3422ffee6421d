"""Secret sums and noise in simulation: the same versions as in the open, but for rounding and noise; never one client
alone.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulation_kit import CLIENTS, Spoils, experiment, rows, same

from coterie.aggregation.history import History
from coterie.aggregation.promises.claims import claim_of
from coterie.aggregation.record import RoundRecord
from coterie.protocol.mechanisms import DISTRIBUTED
from coterie.protocol.privacy import AdaptiveClip, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.tensors import read_file
from coterie.simulation.simulation import Simulation, simulate_full
from coterie.simulation.spending import SimulatedSpending

MANY = [rows(30 + 3 * seed, seed) for seed in range(12)]
POLICY = RoundPolicy(rounds=3, cohort=10, min_updates=8)
NOISED = RoundPolicy(rounds=3, cohort=10, min_updates=8, weight_cap=1, evaluate_every=0)


def run(clients: list[Any] = MANY, **changes: Any) -> Simulation:
    return simulate_full(experiment(**({"rounds": POLICY} | changes)), clients)


def apart(left: Simulation, right: Simulation) -> float:
    """The distance of two models over the length of the first."""
    a = np.concatenate([value.ravel() for _, value in sorted(left.weights.items())]).astype(np.float64)
    b = np.concatenate([value.ravel() for _, value in sorted(right.weights.items())]).astype(np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(a))


@pytest.fixture(scope="module")
def in_the_open() -> Simulation:
    return run(secure_aggregation=False)


def test_secret_sums_are_the_default_from_a_cohort_of_ten_and_learn_the_same(in_the_open: Simulation) -> None:
    secret = run()
    assert apart(secret, in_the_open) < 1e-3
    for one, other in zip(secret.history, in_the_open.history, strict=True):
        assert one.accepted == other.accepted == 10
        assert (one.clipped, other.clipped) == (0.0, None)
        for name, value in other.training.items():
            assert one.training[name] == pytest.approx(value, abs=1e-3)
        for name, value in other.metrics.items():
            assert one.metrics[name] == pytest.approx(value, abs=0.02)
        assert set(one.fairness) == set(other.fairness)
        assert one.fairness["loss"].clients == 10


def test_the_same_run_gives_the_same_bits() -> None:
    first, second = run(), run()
    assert same(first.weights, second.weights)
    assert [record.model for record in first.history] == [record.model for record in second.history]


def test_a_norm_that_is_too_small_is_seen_in_the_record(in_the_open: Simulation) -> None:
    secret = run(secure_aggregation=SecureAggregation(norm=0.01))
    assert [record.clipped for record in secret.history] == [1.0, 1.0, 1.0]
    first = np.concatenate([value.ravel() for value in secret.weights.values()])
    assert np.isfinite(first).all() and apart(in_the_open, secret) > 0.01


def test_a_client_whose_update_is_not_finite_is_left_out_of_the_sum() -> None:
    asked = experiment(rounds=RoundPolicy(rounds=1, cohort=12, min_updates=11, evaluate_every=0))
    spoiled = [*MANY[1:], rows(120)]
    done = simulate_full(asked, spoiled, trainer=Spoils(80))
    assert done.history.rounds[0].state == "committed"
    sane = RoundPolicy(rounds=1, cohort=11, min_updates=11, evaluate_every=0)
    assert apart(done, simulate_full(experiment(rounds=sane), MANY[1:])) < 1e-3
    strict = replace(asked, rounds=asked.rounds.model_copy(update={"min_updates": 12}))
    assert simulate_full(strict, spoiled, trainer=Spoils(80)).history.rounds[0].cause == "aggregate_failed"


def test_groups_let_a_robust_rule_work_beside_secrecy() -> None:
    """Of twelve clients one lies with a length that the norm still allows; a median of four groups passes over it."""
    liar = [dict(one) for one in MANY]
    liar[3] = {"x": (liar[3]["x"] * 200).astype(np.float32), "y": (liar[3]["y"] + 1) % 3}
    policy = RoundPolicy(rounds=4, cohort=12, min_updates=12)
    bare = SecureAggregation(norm=50.0)
    loss: dict[str, float] = {}
    for name, changes in {
        "mean": {"secure_aggregation": bare},
        "median": {"secure_aggregation": bare.but(groups=4), "reducer": "median"},
    }.items():
        history: History = run(liar, rounds=policy, evaluation=rows(200, 77), **changes).history
        assert all(record.state == "committed" for record in history)
        loss[name] = history.rounds[-1].metrics["loss"]
    assert loss["median"] < 0.6 * loss["mean"]


@pytest.mark.parametrize(
    ("mechanism", "secure"),
    # Devices noise only what is summed secretly.
    [("gaussian", False), ("toeplitz", False), *((name, True) for name in ("gaussian", "toeplitz", *DISTRIBUTED))],
)
def test_noise_is_as_large_as_it_says_and_small_noise_learns(mechanism: str, secure: bool) -> None:
    changes: dict[str, Any] = {"rounds": NOISED, "secure_aggregation": secure, "evaluation": rows(200, 77)}
    if mechanism == "toeplitz":
        changes["rounds"] = RoundPolicy(
            rounds=3, cohort=4, min_updates=4, weight_cap=1, evaluate_every=0, rest_rounds=2
        )
    apart_by = 3 if mechanism == "toeplitz" else 1
    small = UserLevel(clip=1.0, delta=1e-5, noise_multiplier=1e-2, mechanism=mechanism, min_separation=apart_by)  # pyright: ignore[reportArgumentType]
    large = small.but(noise_multiplier=20.0)
    quiet, loud = run(privacy=small, **changes), run(privacy=large, **changes)
    for history in (quiet.history, loud.history):
        assert all(record.state == "committed" and not record.training for record in history)
    assert quiet.history.rounds[-1].metrics["loss"] < quiet.history.rounds[0].metrics["loss"]
    size = sum(value.size for value in loud.weights.values())
    moved = np.linalg.norm(np.concatenate([(loud.weights[n] - quiet.weights[n]).ravel() for n in loud.weights]))
    # Three rounds of noise of 20 · clip on the sum, divided by the public cohort; correlated noise partly cancels, and
    # shares of clients beyond the fewest add some.
    expected = np.sqrt(3 * size) * 20.0 / changes["rounds"].cohort
    assert 0.4 * expected < moved < 2.5 * expected


@pytest.mark.parametrize(
    ("mechanism", "secure"), [("gaussian", True), ("gaussian", False), ("discrete_gaussian", True)]
)
def test_a_private_run_tells_what_it_has_spent_and_not_who_was_clipped(mechanism: str, secure: bool) -> None:
    privacy = UserLevel(clip=1.0, delta=1e-5, epsilon=4.0, mechanism=mechanism)  # pyright: ignore[reportArgumentType]
    asked = experiment(rounds=NOISED, privacy=privacy, secure_aggregation=secure)
    done = simulate_full(asked, MANY)
    claim = claim_of(asked, length=done.plan.manifest.layout.size)
    told = [record.epsilon or 0.0 for record in done.history]
    assert claim is not None and told[-1] == pytest.approx(claim.claim.epsilon, rel=1e-6) and told[-1] <= 4.0
    assert 0 < told[0] < told[1] < told[2]
    assert {(record.clipped, record.delta) for record in done.history} == {(None, 1e-5)}


def test_what_was_spent_is_known_after_a_kill(tmp_path: Path) -> None:
    """Of a round that could not be aggregated too; one that never had enough clients costs nothing."""
    privacy = UserLevel(clip=1.0, delta=1e-5, noise_multiplier=2.0)
    asked = experiment(rounds=NOISED, privacy=privacy)
    whole = simulate_full(asked, MANY).history
    simulate_full(replace(asked, rounds=NOISED.model_copy(update={"rounds": 1})), MANY, folder=tmp_path)
    rest = simulate_full(asked, MANY, folder=tmp_path, resume=True).history
    assert [record.epsilon for record in rest] == [record.epsilon for record in whole]
    spending = SimulatedSpending(asked, 100)
    lost = [
        spending.counted(RoundRecord(round=at, state="abandoned", cause=cause)).epsilon
        for at, cause in ((1, "too_few_updates"), (2, "aggregate_failed"))
    ]
    assert lost == [0.0, whole.rounds[0].epsilon]


def test_an_adaptive_clip_follows_the_updates(tmp_path: Path) -> None:
    privacy = UserLevel(
        clip=30.0, delta=1e-5, noise_multiplier=1e-2, adaptive=AdaptiveClip(quantile=0.5, rate=1.0, bits_noise=0.1)
    )
    policy = RoundPolicy(rounds=6, cohort=10, min_updates=8, weight_cap=1, evaluate_every=0)
    for secure in (True, False):
        folder = tmp_path / str(secure)
        simulate_full(experiment(privacy=privacy, rounds=policy, secure_aggregation=secure), MANY, folder=folder)
        kept = [read_file(path) for path in (folder / "states").iterdir()]
        clip = next(float(state["privacy/clip"][0]) for state in kept if "privacy/clip" in state)
        # Six rounds of clips above every update: C falls by e**-0.5 each.
        assert clip == pytest.approx(30 * np.exp(-0.5 * 6), rel=0.4)


def test_a_secret_run_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    whole = simulate_full(experiment(rounds=POLICY), MANY)
    first = experiment(rounds=POLICY.model_copy(update={"rounds": 1}))
    simulate_full(first, MANY, folder=tmp_path)
    rest = simulate_full(experiment(rounds=POLICY), MANY, folder=tmp_path, resume=True)
    assert same(whole.weights, rest.weights)


def test_a_survey_is_a_sum_too() -> None:
    policy = RoundPolicy(rounds=1, cohort=10, min_updates=5, purpose="evaluate")
    secret = run(rounds=policy).history.rounds[0]
    plain = run(rounds=policy, secure_aggregation=False).history.rounds[0]
    assert secret.metrics == pytest.approx(plain.metrics, abs=1e-3)
    assert secret.fairness == plain.fairness
    short = [*CLIENTS[:2], *({name: array[:1] for name, array in one.items()} for one in CLIENTS[2:])]
    asked = RoundPolicy(rounds=1, cohort=4, min_updates=3, purpose="evaluate")
    few = run(short, rounds=asked, secure_aggregation=True).history.rounds[0]
    assert (few.state, few.accepted) == ("abandoned", 0)
