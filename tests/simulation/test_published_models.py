"""Models as they were published, each trained one federated round on small inputs."""

from typing import Any

import numpy as np
import pytest

from coterie.aggregation.experiment import Experiment
from coterie.compute.nn import Module, zoo
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.optim import sgd
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate_full

CLASSES, ROWS, WORDS = 3, 10, 64
IMAGE = Feature(name="x", shape=(3, 32, 32))
TEXT = Feature(name="x", dtype="int32", shape=(16,), low=0, high=WORDS - 1)

MODELS: dict[str, tuple[Module, Feature]] = {
    "resnet18": (zoo.resnet18(3, CLASSES), IMAGE),
    "mobilenet_v3": (zoo.mobilenet_v3(3, CLASSES), IMAGE),
    "bert": (zoo.bert(WORDS, CLASSES), TEXT),
}


def rows(feature: Feature, seed: int) -> dict[str, Any]:
    generator = np.random.Generator(np.random.PCG64(seed))
    label = generator.integers(0, CLASSES, ROWS).astype(np.int32)
    if feature is TEXT:
        return {"x": generator.integers(1, WORDS, (ROWS, *feature.shape)).astype(np.int32), "y": label}
    return {"x": generator.normal(size=(ROWS, *feature.shape)).astype(np.float32), "y": label}


@pytest.mark.parametrize(("model", "feature"), MODELS.values(), ids=MODELS)
def test_a_published_model_trains_a_federated_round(model: Module, feature: Feature) -> None:
    experiment = Experiment(
        name="published",
        model=model,
        schema=DataSchema((feature,), Label(name="y", low=0, high=CLASSES - 1)),
        loss=softmax_cross_entropy,
        optimizer=sgd(0.01),
        batch_size=4,
        rounds=RoundPolicy(rounds=1, cohort=2),
        secure_aggregation=False,
    )
    first = model.init(experiment.seed)
    result = simulate_full(experiment, [rows(feature, seed) for seed in range(2)], engine="threads")
    assert result.history.reason == "completed"
    after = result.weights
    assert {name.partition("/")[2] or name for name in after} == set(first)
    read = {name for name, value in first.items() if (value != 0).any()}
    assert all(np.isfinite(value).all() for value in after.values())
    still = [name for name in read if np.array_equal(after[name], first[name])]
    assert still == []
