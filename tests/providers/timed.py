"""What a provider gains over the CPU: the time of a plan's training step on each, measured as a device measures it."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

import numpy as np

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import FedAvg
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork
from coterie.client_sdk.device.trainers.plan import PlanTrainer, step_feeds
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.module import Module
from coterie.compute.nn.zoo import fedavg_cnn, mlp, resnet18
from coterie.compute.optim import Optimizer, adam, sgd
from coterie.compute.runtime.choice import timings
from coterie.compute.runtime.devices import Provider
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

CLASSES = 10


@dataclass(frozen=True)
class TimedCase:
    """A model and the batches that it is trained on."""

    name: str
    model: Callable[[], Module]
    shape: tuple[int, ...]
    batch: int
    optimizer: Callable[[], Optimizer] = lambda: sgd(0.1)


TIMED = (
    TimedCase("mlp-512", lambda: mlp((784, 512, 512, CLASSES)), (784,), 128, lambda: adam(1e-3)),
    TimedCase("fedavg-cnn", lambda: fedavg_cnn(CLASSES), (1, 28, 28), 32),
    TimedCase("resnet18", lambda: resnet18(3, CLASSES), (3, 32, 32), 16),
)


def step_times(provider: Provider) -> Mapping[str, tuple[float, float]]:
    """Milliseconds of a step by case: on all cores of the CPU, and on the provider. A case that the provider gets wrong
    or does not run is absent; why is printed to the errors' stream.
    """
    threads = os.cpu_count() or 1
    found: dict[str, tuple[float, float]] = {}
    for case in TIMED:
        compiled = compile_plan(
            Experiment(
                name=case.name,
                model=case.model(),
                schema=DataSchema((Feature(name="x", shape=case.shape),), Label(name="y", low=0, high=CLASSES - 1)),
                loss=softmax_cross_entropy,
                optimizer=case.optimizer(),
                metrics={},
                batch_size=case.batch,
                algorithm=FedAvg(),
                rounds=RoundPolicy(rounds=1, cohort=1, evaluate_every=0),
            )
        )
        rng = np.random.default_rng(0)
        rows = {
            "x": rng.normal(size=(case.batch, *case.shape)).astype(np.float32),
            "y": rng.integers(0, CLASSES, case.batch).astype(np.int32),
        }
        task = LocalTask(experiment="prove", round=1, seed=7)
        work = LocalWork(plan=compiled.plan, task=task, weights=compiled.initial, frozen=compiled.frozen, rows=rows)
        begun = PlanTrainer().begin(work)
        cpu, *others = timings(begun.step(next(step_feeds(work))), [provider], threads=threads)
        whole = next(timing for timing in others if not timing.trunk)
        if isfinite(whole.seconds):
            found[case.name] = (round(1e3 * cpu.seconds, 3), round(1e3 * whole.seconds, 3))
        else:
            print(f"{case.name} is not timed on {provider.name}: {whole.fault}", file=sys.stderr)
    return found
