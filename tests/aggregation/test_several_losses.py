"""Several losses by name: their sum is trained, and each is measured."""

from typing import Any

import numpy as np
import pytest

from coterie.aggregation.experiment import Experiment
from coterie.compute import nn
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.optim import adam
from coterie.errors import ExperimentError
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate_full


def confidence(prediction: Array, label: Array) -> Array:
    return 0.01 * xp.sum(prediction * prediction, axis=1)


def apart(prediction: Array, label: Array, sample_weight: Array) -> Array:
    """How far a row's prediction is from the mean of the batch's rows, which padding has no part in."""
    weight = xp.expand_dims(sample_weight, 1)
    middle = xp.sum(prediction * weight, axis=0) / xp.maximum(xp.sum(weight), 1.0)
    return 0.02 * xp.sum((prediction - middle) ** 2, axis=1)


def together(prediction: Array, label: Array, sample_weight: Array) -> Array:
    first = softmax_cross_entropy(prediction, label)
    return first + confidence(prediction, label) + apart(prediction, label, sample_weight)


def of_all(prediction: Array, label: Array) -> Array:
    return xp.mean(prediction)


PARTS = {"entropy": softmax_cross_entropy, "confidence": confidence, "apart": apart}


def rows(seed: int) -> dict[str, Any]:
    generator = np.random.Generator(np.random.PCG64(seed))
    x = generator.normal(size=(30, 4)).astype(np.float32)
    return {"x": x, "y": x[:, :3].argmax(1).astype(np.int32)}


def experiment(**changes: Any) -> Experiment:
    usual: dict[str, Any] = {
        "name": "parts",
        "model": nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)),
        "schema": DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2)),
        "loss": PARTS,
        "optimizer": adam(0.05),
        "metrics": {"accuracy": accuracy},
        "batch_size": 8,
        "rounds": RoundPolicy(rounds=3, cohort=2),
        "evaluation": rows(9),
    }
    return Experiment(**usual | changes)


def test_the_sum_is_trained_and_each_part_is_a_metric() -> None:
    clients = [rows(seed) for seed in range(2)]
    several, one = simulate_full(experiment(), clients), simulate_full(experiment(loss=together), clients)
    for tensor, value in one.weights.items():
        np.testing.assert_allclose(several.weights[tensor], value, rtol=1e-5, atol=1e-6)
    for record in several.history.rounds:
        assert record.metrics["loss"] == pytest.approx(sum(record.metrics[name] for name in PARTS), rel=1e-5)
        assert set(record.metrics) >= {*PARTS, "accuracy"}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"loss": {}}, "losses by name are functions, one at least"),
    ({"loss": {"entropy": 1.0}}, "losses by name are functions"),
    ({"loss": {"accuracy": softmax_cross_entropy}}, "accuracy is a metric too"),
    ({"loss": {"loss": softmax_cross_entropy}}, "metrics examples, loss are added by coterie"),
    ({"loss": {"a b": softmax_cross_entropy}}, "a metric's name must be a Python identifier"),
    ({"loss": {**PARTS, "flat": of_all}}, r"'flat' must return one value per example"),
    ({"schema": DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=5))}, "up to class 5"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_losses_that_cannot_be_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        simulate_full(experiment(**changes), [rows(0), rows(1)])
