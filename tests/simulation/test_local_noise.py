"""Clients that noise their updates by themselves: nothing else leaves them, in the open or in a secret sum."""

from typing import Any

import numpy as np
import pytest
from simulation_kit import experiment, rows, same

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.horizontal import FedNova
from coterie.aggregation.plan.manifest import DELTA, METRICS
from coterie.aggregation.private.local_noise import level_of, local_terms, privatised
from coterie.errors import PlanRefused
from coterie.privacy.dp import local
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.protocol.privacy import LocalLevel, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation.simulation import Simulation, simulate_full

MANY = [rows(30 + 3 * seed, seed) for seed in range(12)]
POLICY = RoundPolicy(rounds=2, cohort=10, min_updates=8, weight_cap=1, evaluate_every=0)
LEVELS = {
    "gaussian": LocalLevel(mechanism="gaussian", epsilon=4.0, delta=1e-5, clip=0.5),
    "randomised_response": LocalLevel(mechanism="randomised_response", epsilon=4.0, clip=0.01),
    "sign_ds": LocalLevel(mechanism="sign_ds", epsilon=8.0, clip=0.1, top=0.2),
}


def run(level: LocalLevel, **changes: Any) -> Simulation:
    return simulate_full(experiment(**({"rounds": POLICY, "privacy": level} | changes)), MANY)


def joined(run: Simulation) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.concatenate([value.ravel() for _, value in sorted(run.weights.items())]).astype(np.float64)


@pytest.mark.parametrize("name", LEVELS)
def test_secret_sums_of_noised_updates_are_the_sums_in_the_open(name: str) -> None:
    """The grid holds everything that such clients send: what differs is its rounding."""
    secret, seen = run(LEVELS[name], secure_aggregation=True), run(LEVELS[name], secure_aggregation=False)
    assert np.abs(joined(secret) - joined(seen)).max() < 2e-3 * np.abs(joined(seen)).max()
    assert [record.clipped for record in secret.history] == [0.0, 0.0]


@pytest.mark.parametrize("name", LEVELS)
def test_nothing_of_training_leaves_but_the_noised_change(name: str) -> None:
    for secure in (True, False):
        history = run(LEVELS[name], secure_aggregation=secure).history
        assert [record.accepted for record in history] == [10, 10]
        assert [dict(record.training) for record in history] == [{}, {}]


def test_noise_is_repeatable_and_differs_by_seed_and_strength() -> None:
    level = LEVELS["gaussian"]
    assert same(run(level).weights, run(level).weights)
    assert not same(run(level).weights, run(level, seed=1).weights)
    none = simulate_full(experiment(rounds=POLICY, secure_aggregation=False), MANY)
    strong, weak = (
        run(level, secure_aggregation=False),
        run(LocalLevel(mechanism="gaussian", epsilon=400.0, delta=1e-5, clip=0.5), secure_aggregation=False),
    )
    far, near = (float(np.linalg.norm(joined(one) - joined(none))) for one in (strong, weak))
    # Ten clients, two rounds: the mean's noise has deviation σ √(2 / 10).
    expected = local.deviation(level, joined(none).size) * (0.2 * joined(none).size) ** 0.5
    assert 0.6 * expected < far < 1.6 * expected
    assert near < far / 5


def test_terms_say_the_level_and_no_other_privacy_has_any() -> None:
    for level in LEVELS.values():
        terms = local_terms(level)
        assert terms is not None
        assert level_of(type(terms).model_validate_json(terms.model_dump_json())) == level
    assert local_terms(None) is None
    assert local_terms(UserLevel(clip=1.0, delta=1e-5, epsilon=1.0)) is None


def test_sections_beside_the_change_are_zeros_or_refused() -> None:
    manifest = compile_plan(experiment(rounds=POLICY)).plan.manifest
    terms = local_terms(LEVELS["gaussian"])
    assert terms is not None
    made = {DELTA: np.ones(manifest.layout.size, np.float32), METRICS: np.ones(len(manifest.metrics))}
    sent = privatised(manifest, made, terms, NoiseSource(bytes(32)))
    assert not sent[METRICS].any()
    assert sent[DELTA].dtype == np.float32
    meant = local.privatise(made[DELTA], LEVELS["gaussian"], NoiseSource(bytes(32)))
    assert np.array_equal(sent[DELTA], meant.astype(np.float32))
    more = compile_plan(experiment(rounds=RoundPolicy(rounds=1, cohort=2), algorithm=FedNova())).plan.manifest
    with pytest.raises(PlanRefused) as refused:
        privatised(more, made, terms, NoiseSource(bytes(32)))
    assert refused.value.reason == "local_noise_sections"
