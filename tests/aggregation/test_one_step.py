"""One local step: what a device trains by a plan is what a `Trainer` trains, with the same draws."""

from typing import Any

import numpy as np
import pytest

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import FLOAT16, Experiment
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.compute import nn
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.optim import Optimizer, adam, clipped, cosine, sgd
from coterie.compute.step.precision import Precision
from coterie.compute.training import Trainer, accumulate
from coterie.errors import ExperimentError
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

ROWS, EPOCHS, SEED = 44, 2, 7
PLAIN = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Dropout(0.4), nn.Linear(12, 6), nn.Dropout(0.2), nn.Linear(6, 3))
NORMED = nn.Sequential(nn.Linear(5, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.4), nn.Linear(12, 3))
STEPS = EPOCHS * -(-ROWS // 8)
CASES: dict[str, tuple[nn.Module, Optimizer, dict[str, Any]]] = {
    "momentum": (PLAIN, sgd(0.1, momentum=0.9), {}),
    "statistics": (NORMED, adam(0.02), {}),
    "clipped, in groups": (PLAIN, accumulate(clipped(adam(0.02), 0.5), 3), {}),
    "scheduled": (PLAIN, adam(0.02), {"schedules": {"lr": cosine(0.05, length=STEPS)}}),
    "bfloat16": (PLAIN, adam(0.02), {"precision": "bfloat16"}),
    "float16": (PLAIN, adam(0.02), {"precision": "float16"}),
}


def rows() -> dict[str, Any]:
    generator = np.random.Generator(np.random.PCG64(3))
    x = generator.normal(size=(ROWS, 5)).astype(np.float32)
    return {"x": x, "y": x[:, :3].argmax(1).astype(np.int32)}


def experiment(model: nn.Module, optimizer: Optimizer, **changes: Any) -> Experiment:
    usual: dict[str, Any] = {
        "name": "one step",
        "model": model,
        "schema": DataSchema((Feature(name="x", shape=(5,)),), Label(name="y", low=0, high=2)),
        "loss": softmax_cross_entropy,
        "optimizer": optimizer,
        "batch_size": 8,
        "epochs": EPOCHS,
        "max_steps": STEPS,
        "holdout": 0.0,
        "rounds": RoundPolicy(rounds=1, cohort=1, evaluate_every=0),
    }
    return Experiment(**usual | changes)


@pytest.mark.parametrize("name", CASES)
def test_a_device_and_a_trainer_take_the_same_steps(name: str) -> None:
    """Epochs end with padding, orders and masks of dropout are drawn, and statistics follow the batches."""
    model, optimizer, changes = CASES[name]
    compiled = compile_plan(experiment(model, optimizer, **changes))
    task = LocalTask(experiment="one step", round=1, seed=SEED)
    done = PlanTrainer().train(LocalWork(plan=compiled.plan, task=task, weights=compiled.initial, rows=rows()))
    update = compiled.plan.manifest.layout.unflatten(done.sections["delta"])

    halves = "precision" in changes
    precision = {"bfloat16": Precision(dtype="bfloat16", scale=1.0, grow_after=None), "float16": FLOAT16}
    own: dict[str, Any] = {"precision": precision[changes["precision"]]} if halves else changes
    trainer = Trainer(model, softmax_cross_entropy, optimizer, batch_size=8, seed=SEED, initial=compiled.initial, **own)
    fit = trainer.fit(rows(), epochs=EPOCHS)
    assert len(fit.losses) == STEPS
    for tensor, value in trainer.params.items():
        moved = value - compiled.initial[tensor]
        assert np.abs(moved).max() > 1e-4
        np.testing.assert_allclose(update[tensor], moved, rtol=1e-3, atol=5e-3 if halves else 2e-6, err_msg=tensor)


def falling(step: int) -> float:
    return 0.1 - 0.02 * step


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schedules": {"lr": falling}}, r"test_one_step.py:\d+: .*'lr' gives -0.0.* at step 6"),
        ({"schedules": {"rate": cosine(0.1, length=5)}}, "no hyper-parameter rate; adam has beta1, beta2, epsilon, lr"),
        ({"schedules": {"lr": 0.1}}, "a schedule must be a function of a step's number"),
        ({"schedules": [0.1]}, "schedules must be a mapping of names to functions"),
        ({"schedules": {"lr": cosine(0.1, length=5)}, "max_steps": None}, "schedules need max_steps"),
        (
            {
                "schedules": {"lr": cosine(0.1, length=5)},
                "rounds": RoundPolicy(rounds=1, cohort=1, hyper_schedule={"lr": (0.1,)}),
            },
            "schedules and hyper_schedule both set lr",
        ),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        experiment(PLAIN, adam(0.02), **changes)
