"""Trainers of one's own: scalars, who the client is, and methods that they cannot follow."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from simulation_kit import SCHEMA, rows

from coterie import errors
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.horizontal import Algorithm, FedDyn, FedNova, Moon, Scaffold
from coterie.aggregation.horizontal.algorithm import ClientPart
from coterie.aggregation.horizontal.server_part import Aggregates, ServerPart
from coterie.aggregation.methods import register
from coterie.client_sdk.device.trainers.external import ExternalTrainer, FitTask
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import simulate_full

CLIENTS = [rows(20, seed) for seed in range(3)]


def asked(**changes: Any) -> Experiment:
    """A scalar and a vector, of which a trainer moves the scalar by its client's number."""
    settings: dict[str, Any] = {
        "name": "own",
        "model": ExternalModel({"temperature": (), "w": (2,)}),
        "schema": SCHEMA,
        "rounds": RoundPolicy(rounds=2, cohort=3, evaluate_every=0),
        "holdout": 0.0,
        **changes,
    }
    return Experiment(**settings)


def fit(params: dict[str, NDArray[np.float32]], task: FitTask) -> Any:
    assert params["temperature"].shape == ()
    return {**params, "temperature": params["temperature"] + int(task.client)}, 1, 1, {}


@pytest.mark.parametrize("codec", ["float32", "int8", "int8:channel", "bfloat16"])
def test_scalars_are_trained_and_a_trainer_knows_its_client(codec: str, tmp_path: Path) -> None:
    start = {"temperature": np.float32(5).reshape(()), "w": np.zeros(2, np.float32)}
    wanted = asked(initial=start, codecs=(codec,))
    done = simulate_full(wanted, CLIENTS, trainer=ExternalTrainer(fit), folder=tmp_path)
    # The mean of 0, 1 and 2, twice.
    assert done.weights["temperature"].shape == () and done.weights["temperature"] == pytest.approx(7.0, abs=0.05)
    again = simulate_full(wanted, CLIENTS, trainer=ExternalTrainer(fit), folder=tmp_path, resume=True)
    assert again.weights["temperature"] == done.weights["temperature"]
    with pytest.raises(errors.ExperimentError, match="or \\(\\) for a scalar"):
        ExternalModel({"w": (0,)})


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (Scaffold(clients=3), "scaffold corrects the gradient of every step"),
        (FedDyn(clients=3), "feddyn corrects the gradient of every step and keeps tensors on the client"),
        (Moon(), "moon adds to the loss of every step and keeps tensors on the client"),
        (FedNova(), "fednova uploads something other than the change"),
        (Algorithm(name="fedavg", client=ClientPart(objective=lambda losses, _: losses)), "fedavg adds to the loss"),
    ],
)
def test_a_method_that_a_trainer_of_ones_own_cannot_follow_says_why(method: Algorithm, why: str) -> None:
    with pytest.raises(errors.ExperimentError, match=why) as caught:
        asked(algorithm=method)
    assert caught.value.reason == "experiment_combination" and "import its ONNX file" in caught.value.message


def Twice() -> Algorithm:
    """FedAvg whose server goes twice as far."""

    def apply(together: Aggregates, state: Any, optimize: Any) -> Any:
        return 2 * optimize(together.sections["delta"]), state

    return Algorithm(name="twice", server=ServerPart(apply=apply))


def test_a_server_part_of_ones_own_works_with_trainers_of_ones_own() -> None:
    register("twice", Twice)
    done = simulate_full(asked(algorithm=Twice()), CLIENTS, trainer=ExternalTrainer(fit))
    assert done.weights["temperature"] == pytest.approx(4.0)
