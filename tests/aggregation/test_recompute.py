"""Activations that are computed again: the same update, less memory, and what it is not for."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.compiling.graphs import GraphBuilder
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.horizontal import FedProx
from coterie.compute import nn
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.memory.report import memory_report
from coterie.compute.nn import zoo
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.optim import adam, sgd
from coterie.errors import ExperimentError
from coterie.protocol.privacy import ExampleLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate_full

CLASSES, ROWS, WORDS = 3, 10, 20
IMAGE, SMALL = Feature(name="x", shape=(3, 32, 32)), Feature(name="x", shape=(1, 28, 28))
TEXT = Feature(name="x", dtype="int32", shape=(8,), low=0, high=WORDS - 1)


@dataclass(frozen=True)
class Weighed(nn.Module):
    """A layer whose output is also kept small beside the loss, and of which some is dropped."""

    def specs(self) -> dict[str, nn.ParameterSpec]:
        return dict(nn.Linear(16, 16).specs())

    def __call__(self, params: nn.Parameters, x: Array, mode: nn.Mode = nn.EVAL) -> Array:
        y = nn.Dropout(0.3)({}, xp.tanh(nn.Linear(16, 16)(params, x, mode)), mode)
        if mode.penalise is not None:
            mode.penalise(0.1 * xp.mean(y * y, axis=1))
        return y


BY_BATCH = nn.Sequential(
    nn.Conv2d(3, 8, 3, 2),
    nn.BatchNorm2d(8),
    zoo.ResidualBlock(8, 8, 1, None),
    zoo.ResidualBlock(8, 16, 2, None),
    nn.AdaptiveAvgPool2d(),
    nn.Flatten(),
    nn.Linear(16, CLASSES),
)
MODELS: dict[str, tuple[nn.Module, Feature]] = {
    "a convolutional network": (zoo.fedavg_cnn(CLASSES), SMALL),
    "running statistics": (BY_BATCH, IMAGE),
    "group normalisation": (zoo.resnet(3, CLASSES), IMAGE),
    "a mobile network": (zoo.mobilenet_v3(3, CLASSES, zoo.MOBILENET_V3_SMALL[:3], last=16), IMAGE),
    "attention": (zoo.char_transformer(WORDS, 16, 2, 2, 8), TEXT),
    "an encoder": (zoo.bert(WORDS, CLASSES, 16, 2, 2, length=8), TEXT),
    "terms and dropout": (
        nn.Sequential(nn.Flatten(), nn.Linear(784, 16), Weighed(), Weighed(), nn.Linear(16, CLASSES)), SMALL),
    "stages in a stage": (
        nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(784, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU()),
                      nn.Linear(8, CLASSES)), SMALL),
}  # fmt: skip


def rows(feature: Feature, seed: int) -> dict[str, Any]:
    generator = np.random.Generator(np.random.PCG64(seed))
    label = generator.integers(0, CLASSES, ROWS).astype(np.int32)
    if feature is TEXT:
        return {"x": generator.integers(0, WORDS, (ROWS, *feature.shape)).astype(np.int32), "y": label}
    return {"x": generator.normal(size=(ROWS, *feature.shape)).astype(np.float32), "y": label}


def experiment(of: nn.Module, feature: Feature, **changes: Any) -> Experiment:
    usual: dict[str, Any] = {
        "name": "again",
        "model": of,
        "schema": DataSchema((feature,), Label(name="y", low=0, high=CLASSES - 1)),
        "loss": softmax_cross_entropy,
        "optimizer": sgd(0.05),
        "batch_size": 4,
        "rounds": RoundPolicy(rounds=1, cohort=2),
        "secure_aggregation": False,
    }
    return Experiment(**usual | changes)


def trained(model: nn.Module, feature: Feature, engine: str = "threads", **changes: Any) -> dict[str, Any]:
    sites = [rows(feature, seed) for seed in range(2)]
    result = simulate_full(experiment(model, feature, **changes), sites, engine=engine)
    assert result.history.reason == "completed"
    return dict(result.weights)


@pytest.mark.parametrize(("model", "feature"), MODELS.values(), ids=MODELS)
def test_a_round_gives_the_same_update(model: nn.Module, feature: Feature) -> None:
    kept, again = trained(model, feature), trained(model, feature, recompute=True)
    assert kept.keys() == again.keys()
    for name, expected in kept.items():
        np.testing.assert_allclose(again[name], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("engine", ["threads", "batched"])
def test_so_it_does_with_a_method_and_an_optimizer_of_state(engine: str) -> None:
    model, feature = MODELS["group normalisation"]
    changes: dict[str, Any] = {"algorithm": FedProx(0.1), "optimizer": adam(0.01, epsilon=1e-3)}
    kept, again = (trained(model, feature, engine, recompute=asked, **changes) for asked in (False, True))
    for name, expected in kept.items():
        np.testing.assert_allclose(again[name], expected, rtol=0, atol=1e-5)


DEEP: dict[str, tuple[nn.Module, Feature, float]] = {
    "a transformer": (
        zoo.char_transformer(WORDS, 32, 2, 6, 64), Feature(name="x", dtype="int32", shape=(64,)), 0.5),
    "an encoder": (zoo.bert(WORDS, CLASSES, 32, 2, 6, length=64), Feature(name="x", dtype="int32", shape=(64,)), 0.6),
    "convolutions": (zoo.resnet(3, CLASSES, (16,), 4), IMAGE, 0.7),
}  # fmt: skip


@pytest.mark.parametrize(("model", "feature", "part"), DEEP.values(), ids=DEEP)
def test_a_step_needs_less_memory_by_the_planner(model: nn.Module, feature: Feature, part: float) -> None:
    """The planner's figure; what a process really needs is measured by benchmarks/models.py."""

    def peak(recompute: bool) -> int:
        asked = experiment(model, feature, batch_size=16, recompute=recompute)
        return memory_report(GraphBuilder.of(asked).build()["train"]).peak

    assert peak(recompute=True) < part * peak(recompute=False)


def test_only_the_training_step_changes() -> None:
    model, feature = MODELS["an encoder"]
    plain, again = (compile_plan(experiment(model, feature, recompute=asked)).plan for asked in (False, True))
    changed = [name for name, data in plain.graphs.items() if again.graphs[name] != data]
    assert changed == ["train"]


EXTERNAL = ExternalModel(parameters={"w": (2, 3)})
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "one layer": ({"model": nn.Sequential(nn.Flatten(), nn.Linear(784, CLASSES))}, "recompute finds no part in"),
    "a layer alone": (
        {"model": nn.Linear(4, CLASSES), "schema": DataSchema((Feature(name="x", shape=(4,)),), Label(name="y"))},
        "recompute finds no part in the model Linear"),
    "rows": ({"privacy": ExampleLevel(clip=1.0, delta=1e-5, epsilon=3.0, rows=100)}, "without ExampleLevel privacy"),
    "half precision": ({"precision": "bfloat16"}, "for steps in float32"),
    "code of one's own": ({"model": EXTERNAL, "loss": None, "optimizer": None}, "that coterie compiles"),
    "a number": ({"recompute": 1}, "recompute must be True or False"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), REFUSED.values(), ids=REFUSED)
def test_where_it_cannot_be_it_is_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        compile_plan(experiment(zoo.lenet(CLASSES), SMALL, **{"recompute": True} | changes))
    assert reason in refused.value.message
