"""A small experiment that learns in four rounds, and six clients for it."""

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.experiment import Experiment
from coterie.client_sdk.device.trainers.base import LocalResult, LocalWork
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.compute.data.supply import row_count
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

Arrays = dict[str, NDArray[Any]]
SCHEMA = DataSchema((Feature(name="x", shape=(4,)),), Label(name="y", low=0, high=2))


def rows(count: int = 50, seed: int = 0) -> Arrays:
    generator = np.random.Generator(np.random.PCG64(seed))
    y = generator.integers(0, 3, count).astype(np.int32)
    centres = np.array([[2, 0, 0, 1], [0, 2, 1, 0], [-2, 0, 2, 0]], np.float32)
    return {"x": (centres[y] + generator.normal(0, 0.4, (count, 4))).astype(np.float32), "y": y}


EXAMPLES = Path(__file__).parents[2] / "examples"
CLIENTS = [rows(30 + 5 * seed, seed) for seed in range(6)]


def experiment(**changes: Any) -> Experiment:
    base = Experiment(
        name="tiny",
        model=mlp((4, 8, 3)),
        schema=SCHEMA,
        loss=softmax_cross_entropy,
        optimizer=sgd(0.1),
        metrics={"accuracy": accuracy},
        batch_size=8,
        epochs=2,
        rounds=RoundPolicy(rounds=4, cohort=4),
    )
    return replace(base, **changes)


class Spoils(PlanTrainer):
    """Sends what is not finite for every client with at least so many rows to train on."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self._least = least

    def train(self, work: LocalWork) -> LocalResult:
        result = super().train(work)
        if row_count(work.rows) < self._least:
            return result
        return replace(result, sections={**result.sections, "delta": np.full_like(result.sections["delta"], np.inf)})


def same(a: Mapping[str, NDArray[Any]], b: Mapping[str, NDArray[Any]]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def example(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
