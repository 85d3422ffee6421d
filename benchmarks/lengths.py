"""What steps of several lengths gain: a device's training on short and long texts, beside the full length alone.

    python benchmarks/lengths.py --json [--only gru transformer] [--rounds 4] [--clock wall|cpu]

Each case prints milliseconds a step of a whole training by a plan, with batches, draws and feeds, at lengths of 32, 64
and 128, beside the same training at 128; the minimum over interleaved rounds. Texts have a log-normal length of median
20.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
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
from coterie.compute.nn.zoo import gru, transformer
from coterie.compute.optim import adam
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
LONGEST, BATCH, STEPS = 128, 8, 24
SHORTER = (32, 64)
CASES: Mapping[str, Callable[[], nn.Module]] = {
    "gru": lambda: gru(128, 64),
    "transformer": lambda: transformer(length=LONGEST),
}


def main() -> None:
    """Measure the cases that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    asked = parser.parse_args()
    for name in asked.only:
        full, several = _measured(CASES[name], asked.rounds, CLOCKS[asked.clock])
        show(Line(f"{name}_lengths", round(several, 2), "ms", Peer("full length", round(full, 2))), as_json=asked.json)


def _measured(model: Callable[[], nn.Module], rounds: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Milliseconds a step at the full length, and at several."""
    trainer, rows = PlanTrainer(), _rows()
    works = (_work(model(), (), rows), _work(model(), SHORTER, rows))
    best = [float("inf")] * len(works)
    for _ in range(rounds + 1):  # The first one loads.
        for number, work in enumerate(works):
            begun = clock()
            trainer.train(work)
            best[number] = min(best[number], clock() - begun)
    full, several = (1e3 * seconds / STEPS for seconds in best)
    return full, several


def _rows() -> dict[str, NDArray[Any]]:
    """Tokens of which each is followed by the next one."""
    rng = np.random.default_rng(0)
    x = rng.integers(1, 127, (BATCH * STEPS, LONGEST)).astype(np.int32)
    lengths = np.clip(np.exp(rng.normal(np.log(20), 0.6, len(x))), 1, LONGEST).astype(int)
    x[np.arange(LONGEST) >= lengths[:, None]] = 0
    return {"x": x, "y": np.where(x == 0, -1, x + 1).astype(np.int32)}


def _work(model: nn.Module, lengths: tuple[int, ...], rows: Mapping[str, NDArray[Any]]) -> LocalWork:
    feature = Feature(name="x", dtype="int32", shape=(LONGEST,), low=0, high=127)
    compiled = compile_plan(
        Experiment(
            name="lengths",
            model=model,
            schema=DataSchema((feature,), Label(name="y", shape=(LONGEST,), low=-1, high=127)),
            loss=partial(softmax_cross_entropy, ignore=-1),
            optimizer=adam(1e-3),
            batch_size=BATCH,
            holdout=0.0,
            rounds=RoundPolicy(rounds=1, cohort=1, evaluate_every=0),
            lengths={"x": lengths, "y": lengths} if lengths else {},
        )
    )
    task = LocalTask(experiment="lengths", round=1, seed=7)
    return LocalWork(plan=compiled.plan, task=task, weights=compiled.initial, frozen=compiled.frozen, rows=rows)


if __name__ == "__main__":
    main()
