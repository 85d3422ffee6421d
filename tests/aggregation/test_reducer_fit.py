"""Reducers in experiments: refused when they cannot work, and at work in a simulation with lying clients."""

from typing import Any

import numpy as np
import pytest

from coterie import errors
from coterie.aggregation.experiment import Experiment, ExternalModel
from coterie.aggregation.reducers.fit import check_reducer
from coterie.client_sdk.device.trainers.external import ExternalTrainer, FitResult, FitTask, Params
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate_full


def experiment(**changes: Any) -> Experiment:
    fields: dict[str, Any] = {
        "name": "lies",
        "model": ExternalModel({"w": (3,)}),
        "schema": DataSchema((Feature(name="x"),), Label(name="y", dtype="float32")),
        "rounds": RoundPolicy(rounds=2, cohort=7, evaluate_every=0),
    }
    return Experiment(**(fields | changes))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("mode", "unknown_reducer"),
        ("krum", "reducer_invalid"),
        ("krum(4)", "reducer_updates"),
        ("bulyan(2)", "reducer_updates"),
        ("fltrust", "reducer_reference"),
    ],
)
def test_a_reducer_that_cannot_work_is_refused_with_the_experiment(text: str, code: str) -> None:
    with pytest.raises(errors.ExperimentError) as caught:
        experiment(reducer=text)
    assert caught.value.reason == code
    assert experiment(reducer="krum(3)").reducer == "krum(3)"


def test_clusters_cannot_be_compared() -> None:
    with pytest.raises(errors.ExperimentError, match="ifca") as caught:
        check_reducer("median", 5, "ifca")
    assert caught.value.reason == "reducer_method"
    check_reducer("norm_bound(3)", 5, "ifca")


@pytest.mark.parametrize(("text", "moved"), [("mean", 1000.0), ("nnm(2)+median", 2.0), ("norm_bound(3.5)", 6.0)])
def test_two_lying_clients_of_seven(text: str, moved: float) -> None:
    def fit(params: Params, task: FitTask) -> FitResult:
        liar = float(task.rows["x"][0]) < 2
        return {"w": params["w"] + (1e4 if liar else 1.0)}, 1, 1, {}

    clients = [{"x": np.full(4, i, np.float32), "y": np.zeros(4, np.float32)} for i in range(7)]
    result = simulate_full(experiment(reducer=text, holdout=0.0), clients, trainer=ExternalTrainer(fit))
    assert (abs(result.weights["w"][0]) > moved) == (text == "mean")
    if text.endswith("median"):
        np.testing.assert_allclose(result.weights["w"], 2.0, atol=1e-3)
