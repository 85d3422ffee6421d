"""An experiment with a few lengths, its rows, and which steps its trainings take."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie.aggregation.compiling.compile import CompiledPlan, compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.client_sdk.device.trainers.base import LocalResult, LocalTask, LocalWork
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.compute import nn
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Parameters, ParameterSpec, part, prefixed
from coterie.compute.optim import adam
from coterie.compute.runtime.bound_step import BoundStep
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

WORDS, LONGEST, ROWS, BATCH = 11, 8, 44, 4
LENGTHS = {"x": (2, 4)}
SCHEMA = DataSchema(
    (Feature(name="x", dtype="int32", shape=(LONGEST,), low=0, high=WORDS - 1),), Label(name="y", low=0, high=1)
)


class Read(nn.Module):
    """Reads words with a recurrent layer or with attention, and takes the mean over the words that there are."""

    def __init__(self, layer: nn.Module, *, masked: bool = True, dropout: float = 0.0) -> None:
        self.embedding, self.layer, self.head = nn.Embedding(WORDS, 8), layer, nn.Linear(8, 2)
        self.dropout, self.masked = nn.Dropout(dropout), masked

    def specs(self) -> dict[str, ParameterSpec]:
        return prefixed({"embedding": self.embedding, "layer": self.layer, "head": self.head})

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        held = xp.astype(x != 0, "float32")
        y = self.dropout({}, self.embedding(part(params, "embedding"), x, mode), mode)
        if isinstance(self.layer, nn.MultiHeadAttention):
            mask = (xp.reshape(held, (x.shape[0], 1, 1, x.shape[1])) - 1.0) * 1e9
            y = self.layer(part(params, "layer"), y, mode, mask)
        else:
            y = self.layer(part(params, "layer"), y, mode)
        seen = xp.reshape(held, (*x.shape, 1)) if self.masked else xp.ones((*x.shape, 1), dtype="float32")
        mean = xp.sum(y * seen, axis=1) / xp.maximum(xp.sum(seen, axis=1), 1.0)
        return self.head(part(params, "head"), mean, mode)


def rows(seed: int = 3, count: int = ROWS, lengths: Sequence[int] = (1, 2, 4, 8)) -> dict[str, NDArray[Any]]:
    """Rows of these lengths, whose batches are of several lengths; the label says whether the first word is large."""
    rng = np.random.default_rng(seed)
    x = rng.integers(1, WORDS, (count, LONGEST)).astype(np.int32)
    for row, length in zip(x, rng.choice(lengths, count, p=[0.5, 0.2, 0.2, 0.1]), strict=True):
        row[length:] = 0
    return {"x": x, "y": (x[:, 0] > WORDS // 2).astype(np.int32)}


def asked(**changes: Any) -> Experiment:
    usual: dict[str, Any] = {
        "name": "lengths",
        "model": Read(nn.GRU(8, 8)),
        "schema": SCHEMA,
        "loss": softmax_cross_entropy,
        "optimizer": adam(0.02),
        "batch_size": BATCH,
        "epochs": 2,
        "holdout": 0.0,
        "rounds": RoundPolicy(rounds=1, cohort=1, evaluate_every=0),
        "lengths": LENGTHS,
    }
    return Experiment(**usual | changes)


@cache
def usual() -> CompiledPlan:
    """The plan of `asked()`, compiled once: its layer is unrolled for every length."""
    return compile_plan(asked())


@cache
def whole() -> CompiledPlan:
    """That of the same without lengths."""
    return compile_plan(asked(lengths={}))


def trained(
    wanted: Experiment | CompiledPlan, trainer: PlanTrainer | None = None, *, data: Any = None, seed: int = 7
) -> LocalResult:
    compiled = compile_plan(wanted) if isinstance(wanted, Experiment) else wanted
    task = LocalTask(experiment="lengths", round=1, seed=seed)
    work = LocalWork(plan=compiled.plan, task=task, weights=compiled.initial, rows=data or rows())
    return (trainer or PlanTrainer()).train(work)


def assert_close(found: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=2e-5, err_msg=name)


def widths_of_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each step that is taken from here on, compiling's too."""
    taken: list[int] = []
    step = BoundStep.step

    def counted(bound: BoundStep, feeds: Mapping[str, NDArray[Any]]) -> None:
        taken.extend(info.shape[1] for info in bound.feeds if info.name == "batch/x")
        step(bound, feeds)

    monkeypatch.setattr(BoundStep, "step", counted)
    return taken
