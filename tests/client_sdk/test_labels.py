"""Labels of every shape: devices, a coordinator that measures, and simulations learn to tell arrays."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from as_simulated import assert_as_simulated
from numpy.typing import NDArray
from sdk_kit import Coordinator

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.losses import PerExample
from coterie.compute import nn
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.losses import (
    binary_cross_entropy_with_logits,
    huber,
    negative_log_likelihood,
    softmax_cross_entropy,
)
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.zoo import gru
from coterie.compute.optim import adam
from coterie.errors import ExperimentError
from coterie.protocol.privacy import ExampleLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import simulate_full

ROWS = 24
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Task:
    """A model whose label is no single number. rows: so many, of a generator."""

    model: nn.Module
    schema: DataSchema
    loss: PerExample
    rows: Callable[[np.random.Generator], Arrays]
    metrics: Mapping[str, PerExample]


@dataclass(frozen=True)
class PerPixel(nn.Module):
    """x[B, 6, 6] → log-probabilities of two classes for each pixel, [B, 6, 6, 2]."""

    inner: nn.Module = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1))

    def specs(self) -> dict[str, nn.ParameterSpec]:
        return self.inner.specs()

    def __call__(self, params: Mapping[str, Array], x: Any, mode: nn.Mode = nn.EVAL) -> Array:
        scores = xp.permute_dims(self.inner(params, xp.expand_dims(x, 1), mode), (0, 2, 3, 1))
        return scores - xp.log(xp.sum(xp.exp(scores), axis=-1, keepdims=True))


@dataclass(frozen=True)
class Boxes(nn.Module):
    """x[B, 4] → two boxes of four edges, [B, 2, 4]."""

    inner: nn.Module = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))

    def specs(self) -> dict[str, nn.ParameterSpec]:
        return self.inner.specs()

    def __call__(self, params: Mapping[str, Array], x: Any, mode: nn.Mode = nn.EVAL) -> Array:
        return xp.reshape(self.inner(params, x, mode), (x.shape[0], 2, 4))


def tokens(generator: np.random.Generator) -> Arrays:
    start, step = generator.integers(0, 7, (ROWS, 1)), generator.integers(1, 4, (ROWS, 1))
    text = ((start + step * np.arange(9)) % 7).astype(np.int32)
    return {"text": text[:, :-1], "next": text[:, 1:]}


def topics(generator: np.random.Generator) -> Arrays:
    x = generator.normal(size=(ROWS, 4)).astype(np.float32)
    return {"x": x, "sport": (x[:, 0] > 0) * 1, "music": (x[:, 1] + x[:, 2] > 0) * 1, "art": (x[:, 3] < 0.5) * 1}


def images(generator: np.random.Generator) -> Arrays:
    x = generator.normal(size=(ROWS, 6, 6)).astype(np.float32)
    return {"x": x, "mask": (x > 0.3).astype(np.int32)}


def edges(generator: np.random.Generator) -> Arrays:
    x = generator.uniform(size=(ROWS, 4)).astype(np.float32)
    return {"x": x, "boxes": np.stack([x, 1 - x], axis=1)}


def exact(prediction: Array, label: Array) -> Array:
    """Whether all topics of a row are right."""
    wrong = xp.astype((prediction > 0) != (label > 0), "float32")
    return 1.0 - xp.max(wrong, axis=1)


TASKS = {
    "next token": Task(
        gru(7, 12),
        DataSchema((Feature(name="text", dtype="int32", shape=(8,)),), Label(name="next", shape=(8,), low=0, high=6)),
        softmax_cross_entropy,
        tokens,
        {"accuracy": accuracy},
    ),
    "multi label": Task(
        nn.Sequential(nn.Linear(4, 3)),
        DataSchema(
            (Feature(name="x", shape=(4,)),),
            Label(name="topics", shape=(3,), columns=("sport", "music", "art"), low=0, high=1),
        ),
        binary_cross_entropy_with_logits,
        topics,
        {"exact": exact},
    ),
    "segmentation": Task(
        PerPixel(),
        DataSchema((Feature(name="x", shape=(6, 6)),), Label(name="mask", shape=(6, 6), low=0, high=1)),
        negative_log_likelihood,
        images,
        {"accuracy": accuracy},
    ),
    "boxes": Task(
        Boxes(),
        DataSchema((Feature(name="x", shape=(4,)),), Label(name="boxes", dtype="float32", shape=(2, 4))),
        huber,
        edges,
        {},
    ),
}


def rows_of(task: Task, seed: int) -> Arrays:
    return task.rows(np.random.Generator(np.random.PCG64(seed)))


def experiment(name: str, **changes: Any) -> Experiment:
    task = TASKS[name]
    usual: dict[str, Any] = {
        "name": f"label {name}",
        "model": task.model,
        "schema": task.schema,
        "loss": task.loss,
        "metrics": task.metrics,
        "optimizer": adam(0.05),
        "batch_size": ROWS,
        "epochs": 4,
        "holdout": 0.0,
        "evaluation": rows_of(task, 9),
        "rounds": RoundPolicy(rounds=2, cohort=2, evaluate_every=0),
    }
    return Experiment(**usual | changes)


@pytest.mark.parametrize("name", TASKS)
def test_devices_and_a_simulation_learn_to_tell_arrays(coordinator: Coordinator, tmp_path: Path, name: str) -> None:
    # Steps of Adam on gradients near zero go either way.
    clients = [rows_of(TASKS[name], seed) for seed in range(2)]
    assert_as_simulated(coordinator, tmp_path, experiment(name), clients, tolerance=1e-4)


@pytest.mark.parametrize("name", TASKS)
def test_engines_agree_and_a_resumed_run_goes_on(tmp_path: Path, name: str) -> None:
    clients = [rows_of(TASKS[name], seed) for seed in range(2)]
    longer = experiment(name, rounds=RoundPolicy(rounds=8, cohort=2, evaluate_every=4), holdout=0.25, batch_size=8)
    whole = simulate_full(longer, clients)
    losses = [value for _, value in whole.history.curve("loss")]
    assert losses[-1] < 0.8 * losses[0]
    assert set(TASKS[name].metrics) < set(whole.history.rounds[-1].metrics)
    lanes = simulate_full(longer, clients, engine="batched")
    shorter = experiment(name, rounds=RoundPolicy(rounds=4, cohort=2, evaluate_every=4), holdout=0.25, batch_size=8)
    simulate_full(shorter, clients, folder=tmp_path)
    resumed = simulate_full(longer, clients, folder=tmp_path, resume=True)
    # Rounding grows where Adam divides by gradients near zero, so engines agree in the mean and roughly everywhere.
    for tensor, value in whole.weights.items():
        np.testing.assert_array_equal(resumed.weights[tensor], value)
        np.testing.assert_allclose(lanes.weights[tensor], value, rtol=0, atol=0.02)


def test_private_rows_have_labels_of_a_shape() -> None:
    """Each row's own gradient is clipped, with all elements of its label in it."""
    wanted = experiment(
        "multi label",
        privacy=ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=0.5, rows=ROWS),
        rounds=RoundPolicy(rounds=2, cohort=2, weight_cap=1, evaluate_every=0),
        batch_size=8,
        max_steps=4,
    )
    done = simulate_full(wanted, [rows_of(TASKS["multi label"], seed) for seed in range(2)])
    assert done.history.reason == "completed"


FILLED = DataSchema((Feature(name="text", dtype="int32", shape=(8,)),), Label(name="next", shape=(8,), low=-1, high=6))


def filled(seed: int, filling: int) -> Arrays:
    """Texts of three to eight tokens."""
    rows = rows_of(TASKS["next token"], seed)
    ends = np.random.Generator(np.random.PCG64(seed)).integers(3, 9, ROWS)[:, None]
    place = np.arange(8)[None]
    text = np.where(place < ends, rows["text"], filling)
    return {"text": text.astype(np.int32), "next": np.where(place < ends, rows["next"], -1).astype(np.int32)}


def test_filling_counts_neither_in_the_loss_nor_in_the_accuracy() -> None:
    """Whatever stands in its place, versions and metrics are the same: the model looks back alone."""
    changes: dict[str, Any] = {
        "schema": FILLED,
        "loss": partial(softmax_cross_entropy, ignore=-1),
        "metrics": {"accuracy": partial(accuracy, ignore=-1)},
        "evaluation": None,
    }
    one, other = (
        simulate_full(experiment("next token", **changes), [filled(seed, filling) for seed in range(2)])
        for filling in (0, 6)
    )
    for tensor, value in one.weights.items():
        if not tensor.startswith("0."):  # of the embedding, rows of filling have gradients of zero, which Adam keeps
            np.testing.assert_allclose(other.weights[tensor], value, rtol=1e-4, atol=1e-5)
    found, expected = (dict(result.history.curve("training.accuracy")) for result in (one, other))
    assert found == pytest.approx(expected)


def mean_of_all(prediction: Array, label: Array) -> Array:
    return xp.mean((prediction - label) ** 2)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("next token", {"model": gru(6, 12)}, "label goes up to class 6, but the model gives 6 logits"),
        ("multi label", {"model": nn.Linear(4, 2)}, r"binary_cross_entropy_with_logits.* \[24, 2\].* \[24, 3\]"),
        ("boxes", {"loss": mean_of_all}, "one value per example"),
        ("next token", {"schema": FILLED}, "may be as low as -1, which is no class"),
        ("next token", {"evaluation_metrics": ("auc",)}, "'auc' needs one label for each row"),
    ],
)
def test_a_label_that_does_not_fit_is_refused(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        simulate_full(experiment(name, **changes), [rows_of(TASKS[name], seed) for seed in range(2)])
