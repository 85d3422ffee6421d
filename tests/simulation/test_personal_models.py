"""Models of which a part stays with each client: measured, predicted with and exported per client."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from simulation_kit import example, experiment, rows

from coterie import errors
from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.fitting import check_terms
from coterie.aggregation.horizontal import FedAvg
from coterie.aggregation.horizontal.algorithm import Algorithm
from coterie.compute.runtime.executable import Executable
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import Simulation, simulate_full

PLAIN = rows(40, 1)
OPPOSITE = {"x": PLAIN["x"], "y": (2 - PLAIN["y"]).astype(np.int32)}
ROUNDS = RoundPolicy(rounds=12, cohort=2, evaluate_every=1)
FedPer: Callable[[int], Algorithm] = example("fedper").FedPer


def personal() -> Experiment:
    return experiment(algorithm=FedPer(2), rounds=ROUNDS, batch_size=8, epochs=2, evaluation=None, infer_batch=40)


@cache
def run(engine: str = "threads") -> Simulation:
    return simulate_full(personal(), [PLAIN, OPPOSITE], engine=engine, workers=2)


def accuracy(logits: NDArray[np.float32], y: NDArray[np.int32]) -> float:
    return float((logits.argmax(1) == y).mean())


def test_clients_with_opposite_labels_share_a_body_and_keep_their_own_heads() -> None:
    """One model cannot fit both; two heads on one body can, and the clients' evaluations see it."""
    for client, data in enumerate((PLAIN, OPPOSITE)):
        assert accuracy(run().predict(data, client=client, best=False), data["y"]) > 0.9
    assert run().history.rounds[-1].metrics["accuracy"] > 0.85
    shared = simulate_full(replace(personal(), algorithm=FedAvg()), [PLAIN, OPPOSITE], workers=2)
    assert shared.history.rounds[-1].metrics["accuracy"] < 0.75
    initial = compile_plan(personal()).initial
    head = [*initial][-2:]
    for name, value in run().weights.items():
        assert np.array_equal(value, initial[name]) == (name in head)


@pytest.mark.parametrize("engine", ["processes", "batched"])
def test_every_engine_measures_the_personal_model(engine: str) -> None:
    found, expected = run(engine).history.rounds, run().history.rounds
    for got, wanted in zip(found, expected, strict=True):
        assert got.metrics["loss"] == pytest.approx(wanted.metrics["loss"], rel=1e-4)
    assert run(engine).states.keys() == run().states.keys() == {0, 1}


@pytest.mark.parametrize("client", [0, 1])
def test_the_exported_file_is_the_model_that_the_client_predicts_with(client: int) -> None:
    output = Executable(run().infer(client=client, best=False)).run({"batch/x": PLAIN["x"]})["output"]
    np.testing.assert_allclose(output, run().predict(PLAIN, client=client, best=False), rtol=1e-6)


def test_a_client_without_state_has_the_versions_own_head() -> None:
    fresh = replace(run(), states={})
    assert np.array_equal(fresh.predict(PLAIN, client=0), fresh.predict(PLAIN, client=1))
    assert not np.array_equal(fresh.predict(PLAIN, client=0), run().predict(PLAIN, client=0))


def test_without_a_client_there_is_no_model_and_the_error_says_so() -> None:
    for asked in (run().infer, lambda: run().predict(PLAIN)):
        with pytest.raises(errors.ExperimentError, match="never leaves the client") as caught:
            asked()
        assert caught.value.reason == "personal_model"
    with pytest.raises(errors.ConfigurationError, match="0 to 1") as unknown:
        run().predict(PLAIN, client=2)
    assert unknown.value.reason == "client_unknown"


def test_a_coordinator_refuses_to_measure_personal_models() -> None:
    with pytest.raises(errors.ExperimentError, match="leave evaluation out") as caught:
        compile_plan(replace(personal(), evaluation=PLAIN))
    assert caught.value.reason == "experiment_combination"
    manifest = compile_plan(personal()).plan.manifest
    assert manifest.personal("evaluate") and manifest.personal("predict")
    with pytest.raises(errors.ExperimentError, match="the coordinator has no model to measure"):
        check_terms(replace(personal().terms, central=True, personal=manifest.personal("evaluate")))
