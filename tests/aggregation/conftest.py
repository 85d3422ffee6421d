"""A small experiment, and the device recipe of the manifest in its plainest form, as tests need them."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.stage import Stage
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.compute.runtime.executable import Executable
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

sys.path.insert(0, str(Path(__file__).parent))

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass
class Driven:
    """What one local training left: the state after it, the upload by section, the new client state."""

    state: dict[str, npt.NDArray[Any]]
    upload: dict[str, npt.NDArray[Any]]
    client_state: dict[str, npt.NDArray[Any]]
    steps: list[dict[str, npt.NDArray[Any]]] = field(default_factory=list[dict[str, npt.NDArray[Any]]])


def drive(
    plan: Plan,
    weights: Arrays,
    batches: Sequence[Arrays],
    *,
    hyper: Mapping[str, float] | None = None,
    client_state: Arrays | None = None,
    active: Sequence[float] | None = None,
    weight: float = 1.0,
    seed: int = 0,
    start: Arrays | None = None,
    frozen: Arrays | None = None,
) -> Driven:
    """Run a training by the manifest alone: no name of a stage, method, model or optimizer occurs here."""
    manifest = plan.manifest
    random = np.random.default_rng(seed)
    kept = client_state or {t.name: np.zeros(t.shape, np.float32) for t in manifest.client_state}
    counters = {"steps": float(len(batches)), "weight": weight}

    def feeds(stage: Stage, state: Arrays, batch: Arrays, on: float) -> dict[str, npt.NDArray[Any]]:
        given: dict[str, npt.NDArray[Any]] = {}
        for tensor in stage.inputs:
            match tensor.source:
                case "model":
                    given[tensor.name] = weights[tensor.key]
                case "frozen":
                    given[tensor.name] = (frozen or {})[tensor.key]
                case "client_state":
                    given[tensor.name] = kept[tensor.key]
                case "probe":
                    given[tensor.name] = probed[tensor.key]
                case "hyper":
                    value = (hyper or {}).get(tensor.key, manifest.hyper[tensor.key])
                    given[tensor.name] = np.array([value], np.float32)
                case "active":
                    given[tensor.name] = np.array([on], np.float32)
                case "random":
                    given[tensor.name] = random.random(tensor.shape, np.float32)
                case "noise":
                    # None: arithmetic is compared here, and noise where it is drawn.
                    given[tensor.name] = np.zeros(tensor.shape, np.float32)
                case "batch":
                    given[tensor.name] = batch[tensor.key]
                case "counter":
                    given[tensor.name] = np.array([counters[tensor.key]], np.float32)
                case "zeros":
                    given[tensor.name] = state.get(tensor.name, np.zeros(tensor.shape, tensor.dtype))
                case "state":
                    given[tensor.name] = state[tensor.name]
                case "message":
                    raise AssertionError("a federated training reads no message")
        return given

    probed: dict[str, npt.NDArray[Any]] = {}
    executables = {stage.name: Executable(plan.graphs[stage.name]) for stage in manifest.stages_of("train")}
    driven = Driven({}, {}, {})

    def run(stage: Stage, batch: Arrays, on: float) -> None:
        outputs = executables[stage.name].run(feeds(stage, driven.state, batch, on))
        after = dict(driven.state)
        for tensor in stage.outputs:
            value = outputs[tensor.name]
            match tensor.destination:
                case "carry" | "state":
                    after[tensor.key] = value
                case "probe":
                    probed[tensor.key] = probed.get(tensor.key, np.zeros(1, np.float32)) + value
                case "upload":
                    driven.upload[tensor.key] = value
                case "client_state":
                    driven.client_state[tensor.key] = value
                case "metric" | "prediction" | "message":
                    raise AssertionError(f"a training leaves a {tensor.destination}")
        driven.state = after

    for stage in manifest.stages_of("train"):
        match stage.over:
            case "once":
                run(stage, {}, 1.0)
            case "pass":
                for batch in batches:
                    run(stage, batch, 1.0)
            case "steps":
                driven.state |= dict(start or {})
                for index, batch in enumerate(batches):
                    run(stage, batch, active[index] if active else 1.0)
                    driven.steps.append(driven.state)
    return driven


@pytest.fixture(scope="session", name="drive")
def drive_fixture() -> Callable[..., Driven]:
    """The recipe above."""
    return drive


def schema_of(shape: tuple[int, ...] = (4,), **options: Any) -> DataSchema:
    """One feature x and a class label y."""
    return DataSchema((Feature(name="x", shape=shape, **options),), Label(name="y", low=0, high=2))


def make_experiment(**changes: Any) -> Experiment:
    """A three-class MLP on four numbers, with anything changed."""
    values: dict[str, Any] = {
        "name": "tiny",
        "model": mlp((4, 5, 3)),
        "schema": schema_of(),
        "rounds": RoundPolicy(rounds=3, cohort=2, min_updates=1),
        "loss": softmax_cross_entropy,
        "optimizer": sgd(0.5),
        "metrics": {"accuracy": accuracy},
        "batch_size": 6,
    }
    return Experiment(**(values | changes))


@pytest.fixture(scope="session", name="make_experiment")
def make_experiment_fixture() -> Callable[..., Experiment]:
    """Make an experiment, changing what the test is about."""
    return make_experiment


@pytest.fixture(scope="session", name="schema_of")
def schema_of_fixture() -> Callable[..., DataSchema]:
    """Make a schema."""
    return schema_of


def make_batch(
    shape: tuple[int, ...] = (4,), *, rows: int = 6, real: int | None = None, seed: int = 0, dtype: str = "float32"
) -> dict[str, npt.NDArray[Any]]:
    """One batch whose first ``real`` rows count."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, *shape)).astype(np.float32)
    weight = np.zeros(rows, np.float32)
    weight[: rows if real is None else real] = 1.0
    return {
        "x": x if dtype == "float32" else random.integers(0, 9, size=(rows, *shape)).astype(dtype),
        "y": random.integers(0, 3, size=rows).astype(np.int32),
        "sample_weight": weight,
    }


@pytest.fixture(scope="session", name="make_batch")
def make_batch_fixture() -> Callable[..., dict[str, npt.NDArray[Any]]]:
    """Make a batch."""
    return make_batch
