"""Trainings that a device makes by a plan, of every kind that an experiment can ask for, and that PyTorch made too."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork
from coterie.client_sdk.device.trainers.plan import PlanTrainer, step_feeds, stepped
from coterie.compute import nn
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.losses import (
    binary_cross_entropy_with_logits,
    huber,
    mean_squared_error,
    softmax_cross_entropy,
)
from coterie.compute.optim import Optimizer, adam, clipped, cosine, sgd
from coterie.compute.training import accumulate
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

ROWS, BATCH, EPOCHS, SEED = 44, 8, 2, 11
STEPS = EPOCHS * -(-ROWS // BATCH)
NUMBERS = Feature(name="x", shape=(5,))
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class PerPixel(nn.Module):
    """x[B, 1, 6, 6] → scores of three classes for each pixel, [B, 6, 6, 3]."""

    inner: nn.Module = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1))

    def specs(self) -> dict[str, nn.ParameterSpec]:
        return self.inner.specs()

    def __call__(self, params: Mapping[str, Array], x: Any, mode: nn.Mode = nn.EVAL) -> Array:
        return xp.permute_dims(self.inner(params, x, mode), (0, 2, 3, 1))


@dataclass(frozen=True)
class TwoInputs(nn.Module):
    """x[B, 5] and z[B, 3] → [B, 3], of both by a layer each."""

    inner: nn.Module = nn.Sequential(nn.Linear(8, 3))

    def specs(self) -> dict[str, nn.ParameterSpec]:
        return self.inner.specs()

    def __call__(self, params: Mapping[str, Array], x: Any, mode: nn.Mode = nn.EVAL) -> Array:
        return self.inner(params, xp.concat([x["x"], x["z"]], axis=1), mode)


def cox(score: Array, label: Array, sample_weight: Array) -> Array:
    """Partial likelihood over the batch (Breslow 1974). label: time, and 1 for an event; score[B, 1]."""
    time, event = label[:, 0], label[:, 1]
    at_risk = xp.astype(xp.expand_dims(time, 0) >= xp.expand_dims(time, 1), xp.float32) * sample_weight
    total = xp.sum(at_risk * xp.exp(xp.expand_dims(score[:, 0], 0)), axis=1)
    return event * (xp.log(xp.maximum(total, 1e-6)) - score[:, 0])


def size(prediction: Array, label: Array) -> Array:
    """A second loss: how large the scores are."""
    return 0.1 * xp.sum(prediction * prediction, axis=1)


def dense() -> nn.Module:
    """A small network."""
    return nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3))


@dataclass(frozen=True)
class Case:
    """A training. label: made of x[44, 5]. tolerance: of the update, relative to its largest number."""

    model: Callable[[], nn.Module]
    loss: Any
    optimizer: Optimizer
    rows: Callable[[np.random.Generator], Arrays]
    features: tuple[Feature, ...] = (NUMBERS,)
    label: Label = field(default_factory=lambda: Label(name="y", low=0, high=2))
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tolerance: float = 2e-5


def classes(draw: np.random.Generator) -> Arrays:
    """Numbers and one of three classes."""
    x = draw.normal(size=(ROWS, 5)).astype(np.float32)
    return {"x": x, "y": x[:, :3].argmax(1).astype(np.int32)}


def _tokens(draw: np.random.Generator) -> Arrays:
    text = draw.integers(0, 7, (ROWS, 7)).astype(np.int32)
    following = text[:, 1:].copy()
    following[draw.random(following.shape) < 0.3] = -1
    return {"x": text[:, :-1], "y": following}


def _topics(draw: np.random.Generator) -> Arrays:
    x = draw.normal(size=(ROWS, 5)).astype(np.float32)
    return {"x": x, "y": (x[:, :3] > 0.2).astype(np.int32)}


def _masks(draw: np.random.Generator) -> Arrays:
    x = draw.normal(size=(ROWS, 1, 6, 6)).astype(np.float32)
    return {"x": x, "y": np.digitize(x[:, 0], [-0.4, 0.5]).astype(np.int32)}


def _boxes(draw: np.random.Generator) -> Arrays:
    x = draw.normal(size=(ROWS, 5)).astype(np.float32)
    return {"x": x, "y": 2 * x[:, :4] + draw.normal(size=(ROWS, 4)).astype(np.float32)}


def _survival(draw: np.random.Generator) -> Arrays:
    x = draw.normal(size=(ROWS, 5)).astype(np.float32)
    time, event = draw.exponential(np.exp(-x[:, 0])), draw.random(ROWS) < 0.7
    return {"x": x, "y": np.stack([time, event], axis=1).astype(np.float32)}


def _two(draw: np.random.Generator) -> Arrays:
    return classes(draw) | {"z": draw.normal(size=(ROWS, 3)).astype(np.float32)}


CASES: dict[str, Case] = {
    "scheduled": Case(
        dense, softmax_cross_entropy, adam(0.02), classes, changes={"schedules": {"lr": cosine(0.05, length=STEPS)}}
    ),
    "clipped": Case(dense, softmax_cross_entropy, clipped(sgd(0.5, momentum=0.9), 0.3), classes),
    "accumulated": Case(dense, softmax_cross_entropy, accumulate(adam(0.02), 3), classes),
    "next token": Case(
        lambda: nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 7)),
        partial(softmax_cross_entropy, ignore=-1),
        sgd(0.5),
        _tokens,
        (Feature(name="x", shape=(6,), dtype="int32", low=0, high=6),),
        Label(name="y", shape=(6,), low=-1, high=6),
    ),
    "several yes or no": Case(
        dense, binary_cross_entropy_with_logits, sgd(0.5), _topics, label=Label(name="y", shape=(3,), low=0, high=1)
    ),
    "masks": Case(
        PerPixel,
        softmax_cross_entropy,
        sgd(0.5),
        _masks,
        (Feature(name="x", shape=(1, 6, 6)),),
        Label(name="y", shape=(6, 6), low=0, high=2),
    ),
    "boxes": Case(
        lambda: nn.Sequential(nn.Linear(5, 4)),
        huber,
        sgd(0.2),
        _boxes,
        label=Label(name="y", shape=(4,), dtype="float32"),
    ),
    "a loss over the batch": Case(
        lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)),
        cox,
        sgd(0.2),
        _survival,
        label=Label(name="y", shape=(2,), dtype="float32"),
    ),
    "two inputs": Case(
        TwoInputs, softmax_cross_entropy, sgd(0.5), _two, (NUMBERS, Feature(name="z", shape=(3,)))
    ),
    "two losses": Case(dense, {"entropy": softmax_cross_entropy, "size": size}, sgd(0.5), classes),
    "numbers": Case(
        lambda: nn.Sequential(nn.Linear(5, 4)),
        mean_squared_error,
        adam(0.05),
        _boxes,
        label=Label(name="y", shape=(4,), dtype="float32"),
    ),
    # PyTorch's is the training in float32: half precision may be as far from it as its roundings are.
    "float16": Case(
        dense, softmax_cross_entropy, sgd(0.5), classes, changes={"precision": "float16"}, tolerance=5e-3
    ),
    "bfloat16": Case(
        dense, softmax_cross_entropy, sgd(0.5), classes, changes={"precision": "bfloat16"}, tolerance=3e-2
    ),
}  # fmt: skip


def work_of(name: str) -> LocalWork:
    """The task that a device would be given."""
    case = CASES[name]
    compiled = compile_plan(
        Experiment(
            name="torch",
            model=case.model(),
            schema=DataSchema(case.features, case.label),
            loss=case.loss,
            optimizer=case.optimizer,
            batch_size=BATCH,
            epochs=EPOCHS,
            max_steps=STEPS,
            holdout=0.0,
            rounds=RoundPolicy(rounds=1, cohort=1, evaluate_every=0),
            **case.changes,
        )
    )
    task = LocalTask(experiment="torch", round=1, seed=SEED)
    rows = case.rows(np.random.Generator(np.random.PCG64(5)))
    return LocalWork(plan=compiled.plan, task=task, weights=compiled.initial, rows=rows)


def batches_of(work: LocalWork) -> list[Arrays]:
    """The rows of each step by column, without the padding."""
    stage = stepped(work.plan.manifest)
    keys = {tensor.name: tensor.key for tensor in stage.from_source("batch")}
    found: list[Arrays] = []
    for feeds in step_feeds(work):
        batch = {key: feeds[name] for name, key in keys.items()}
        real = batch.pop("sample_weight") > 0
        found.append({key: value[real] for key, value in batch.items()})
    return found


def update_of(work: LocalWork) -> Mapping[str, NDArray[Any]]:
    """What the device sends, by parameter."""
    done = PlanTrainer().train(work)
    return work.plan.manifest.layout.unflatten(done.sections["delta"])
