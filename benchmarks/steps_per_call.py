"""What several steps in one call of the runtime gain: a device's training with groups, beside single steps.

    python benchmarks/steps_per_call.py --json [--only tiny_mlp ...] [--groups 8 32] [--rounds 10] [--clock wall|cpu]

Each case prints a line for each size of group (see lines.py): microseconds a step of a whole training by a plan, with
batches, draws and feeds, beside the same training in single steps; the minimum over interleaved rounds.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from lines import Line, Peer, show
from numpy.typing import NDArray

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.compute import nn
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import fedavg_cnn, mlp
from coterie.compute.optim import Optimizer, adam, sgd
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Case:
    """A model and how it is trained. steps: of one training."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    optimizer: Optimizer
    steps: int


CASES: Mapping[str, Case] = {
    "tiny_mlp": Case(lambda: mlp((20, 16, 10)), (20,), 16, sgd(0.05), 320),
    "mlp128": Case(lambda: mlp((784, 128, 10)), (784,), 32, sgd(0.05), 160),
    "mlp512_adam": Case(lambda: mlp((784, 512, 512, 10)), (784,), 128, adam(1e-3), 32),
    "fedavg_cnn": Case(lambda: fedavg_cnn(10), (1, 28, 28), 32, sgd(0.05), 32),
}


def main() -> None:
    """Measure the cases that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--groups", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    asked = parser.parse_args()
    for name in asked.only:
        found = _measured(CASES[name], [1, *asked.groups], asked.rounds, CLOCKS[asked.clock])
        for group in asked.groups:
            peer = Peer("single steps", round(found[1], 1))
            show(Line(f"{name}_{group}_steps_a_call", round(found[group], 1), "us", peer), as_json=asked.json)


def _measured(case: Case, groups: list[int], rounds: int, clock: Callable[[], float]) -> dict[int, float]:
    """Microseconds a step by size of group."""
    rng = np.random.default_rng(0)
    rows = {
        "x": rng.normal(size=(case.batch * case.steps, *case.shape)).astype(np.float32),
        "y": rng.integers(0, 10, case.batch * case.steps).astype(np.int32),
    }
    trainer, best = PlanTrainer(), dict.fromkeys(groups, float("inf"))
    works = {group: _work(case, group, rows) for group in groups}
    for _ in range(rounds + 1):  # The first one loads.
        for group, work in works.items():
            begun = clock()
            trainer.train(work)
            best[group] = min(best[group], clock() - begun)
    return {group: 1e6 * seconds / case.steps for group, seconds in best.items()}


def _work(case: Case, group: int, rows: Mapping[str, NDArray[Any]]) -> LocalWork:
    compiled = compile_plan(
        Experiment(
            name="steps per call",
            model=case.model(),
            schema=DataSchema((Feature(name="x", shape=case.shape),), Label(name="y", low=0, high=9)),
            loss=softmax_cross_entropy,
            optimizer=case.optimizer,
            batch_size=case.batch,
            holdout=0.0,
            rounds=RoundPolicy(rounds=1, cohort=1, evaluate_every=0),
            steps_per_call=group,
        )
    )
    task = LocalTask(experiment="steps", round=1, seed=7)
    return LocalWork(plan=compiled.plan, task=task, weights=compiled.initial, frozen=compiled.frozen, rows=rows)


if __name__ == "__main__":
    main()
