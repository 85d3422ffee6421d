"""Example-level privacy in simulation: every engine runs the same private steps, and what they cost is counted."""

from typing import Any

import numpy as np
import pytest
from simulation_kit import experiment, rows, same

from coterie.aggregation.promises.claims import claim_of
from coterie.protocol.privacy import ExampleLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation.simulation import Simulation, simulate_full

CLIENTS = [rows(60 + 5 * seed, seed) for seed in range(4)]
POLICY = RoundPolicy(rounds=2, cohort=4, weight_cap=1, evaluate_every=0)
LEVEL = ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, rows=60)


def run(engine: str = "threads", **changes: Any) -> Simulation:
    asked = {"rounds": POLICY, "privacy": LEVEL, "max_steps": 6}
    return simulate_full(experiment(**(asked | changes)), CLIENTS, engine=engine, workers=2)


@pytest.mark.usefixtures("by_renyi")
def test_engines_run_the_same_private_steps() -> None:
    threads, processes, batched = (run(engine) for engine in ("threads", "processes", "batched"))
    assert same(threads.weights, processes.weights)
    for name, value in threads.weights.items():
        np.testing.assert_allclose(batched.weights[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("by_renyi")
def test_a_run_repeats_by_its_seed_and_noise_differs_between_seeds_rounds_and_clients() -> None:
    first = run()
    assert same(first.weights, run().weights)
    assert not same(first.weights, run(seed=1).weights)


def test_no_metric_of_training_is_released_and_what_was_spent_is() -> None:
    found = run()
    claim = claim_of(experiment(rounds=POLICY, privacy=LEVEL, max_steps=6), length=67)
    assert claim is not None
    assert [dict(record.training) for record in found.history] == [{}, {}]
    last = [record.epsilon for record in found.history][-1]
    assert last == pytest.approx(claim.claim.epsilon, rel=1e-9)


def test_noise_shows_in_the_model_and_none_to_speak_of_costs_no_endless_accounting() -> None:
    runs = [run(privacy=ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=z, rows=60)) for z in (0.01, 100.0)]
    quiet, loud = (np.concatenate([value.ravel() for value in found.weights.values()]).std() for found in runs)
    assert loud > 3 * quiet


@pytest.mark.usefixtures("by_renyi")
def test_secret_sums_carry_private_updates() -> None:
    few = RoundPolicy(rounds=1, cohort=4, min_updates=3, weight_cap=1, evaluate_every=0)
    secret, seen = run(rounds=few, secure_aggregation=True), run(rounds=few, secure_aggregation=False)
    for name, value in seen.weights.items():
        np.testing.assert_allclose(secret.weights[name], value, atol=5e-3)
