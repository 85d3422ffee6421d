"""Steps of a training that several processes share, by rows or by layers, against one process.

    python benchmarks/parallel.py --json [--only fedavg_cnn_b32_sgd ...] [--processes 2] [--rounds 8]

The step is the train stage of a plan, cut as a device cuts it, each process with one thread. Beside it, in the same run
and on the same batch, the whole step in one process with one thread, and in one with as many threads as there are
processes. Rounds of blocks of about half a second take turns; what counts is the best block of each. Every case prints
a line for each of the two peers: steps a second, the ratio, how far the states are apart after eight steps, how often
the processes meet in a step, the load of the machine before the run, and its cores. ``work`` is how many times less
time of a core the busiest process needs for a step than one process alone: what the ratio would be if nobody waited,
and no other load helped who has more processes. ``memory_mb`` is what the largest of the other processes holds, Python
and ONNX Runtime included, but for files. The budget is of two processes against one with one thread.
"""

import argparse
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from lines import Budget, Line, Peer, at_least, show

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.plan.stage import SAMPLE_WEIGHT
from coterie.client_sdk.device.trainers.base import LocalTask, LocalWork
from coterie.client_sdk.device.trainers.plan import PlanTrainer, step_feeds
from coterie.compute.ir import NDArray
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.module import Module
from coterie.compute.nn.zoo import fedavg_cnn, lenet, mlp
from coterie.compute.optim import Optimizer, adam, sgd
from coterie.compute.runtime.choice import StepCase
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.pipeline.chosen import cut_as_asked
from coterie.compute.runtime.pipeline.operator_times import OperatorTimes
from coterie.compute.runtime.spread.asked import Parallel
from coterie.compute.runtime.spread.choice import shared_loop
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

COMPARED, BLOCK_S = 8, 0.5


@dataclass(frozen=True)
class Case:
    """budget: of two processes; None where the line only informs. layers: whether the processes share the layers, and
    not the rows.
    """

    model: Callable[[], Module]
    shape: tuple[int, ...]
    batch: int
    optimizer: Optimizer
    budget: Budget | None = None
    layers: bool = False


IMAGES = (1, 28, 28)
WIDE = (784, 2048, 2048, 2048, 10)
CASES: Mapping[str, Case] = {
    "fedavg_cnn_b32_sgd": Case(fedavg_cnn, IMAGES, 32, sgd(0.01), at_least(1.6, "ratio")),
    "fedavg_cnn_b32_adam": Case(fedavg_cnn, IMAGES, 32, adam(1e-4)),
    "lenet_b16_sgd": Case(lenet, IMAGES, 16, sgd(0.01)),
    "mlp_784_512_512_10_b64_adam": Case(lambda: mlp((784, 512, 512, 10)), (784,), 64, adam(1e-4)),
    "mlp_784_2048_2048_2048_10_b64_adam": Case(lambda: mlp(WIDE), (784,), 64, adam(1e-4)),
    "mlp_784_2048_2048_2048_10_b64_adam_pipeline": Case(lambda: mlp(WIDE), (784,), 64, adam(1e-4), layers=True),
    "fedavg_cnn_b32_sgd_pipeline": Case(fedavg_cnn, IMAGES, 32, sgd(0.01), layers=True),
    "mlp_784_8_10_b16_sgd": Case(lambda: mlp((784, 8, 10)), (784,), 16, sgd(0.01)),
}


def step_of(case: Case) -> tuple[StepCase, frozenset[str]]:
    """The step of a plan with a batch, and the inputs that are cut by rows."""
    compiled = compile_plan(
        Experiment(
            name="parallel",
            model=case.model(),
            schema=DataSchema((Feature(name="x", shape=case.shape),), Label(name="y", low=0, high=9)),
            rounds=RoundPolicy(rounds=1, cohort=1, min_updates=1),
            loss=softmax_cross_entropy,
            optimizer=case.optimizer,
            metrics={"accuracy": accuracy},
            batch_size=case.batch,
        )
    )
    random = np.random.default_rng(0)
    rows = {
        "x": random.random((case.batch, *case.shape), np.float32),
        "y": random.integers(0, 10, case.batch).astype(np.int32),
    }
    task = LocalTask(experiment="parallel", round=1, seed=0)
    work = LocalWork(plan=compiled.plan, task=task, weights=compiled.initial, rows=rows)
    begun = PlanTrainer().begin(work)
    cut = frozenset(tensor.name for tensor in begun.stage.from_source("batch") if tensor.key != SAMPLE_WEIGHT)
    return begun.step(next(step_feeds(work))), cut


def measure(name: str, case: Case, processes: int, rounds: int) -> list[Line]:
    """The lines of a case."""
    load = os.getloadavg()[0]
    step, batch = step_of(case)
    begun = time.perf_counter()
    asked = Parallel(processes, layers=case.layers)
    cut = cut_as_asked(asked, step, batch=batch, threads=1, times=OperatorTimes())
    cut_s = time.perf_counter() - begun
    shared = shared_loop(step, cut)
    start_s = time.perf_counter() - begun - cut_s
    alone, threaded = (step.whole(Executable(step.data, threads=threads)) for threads in (1, processes))
    for _ in range(COMPARED):
        for loop in (shared, alone):
            loop.step(step.feeds)
    found, right = shared.state(), alone.state()
    apart = max(float(np.max(np.abs(found[each] - value))) for each, value in right.items())
    loops = {"shared": shared.step, "alone": alone.step, "threaded": threaded.step}
    best = dict.fromkeys(loops, 0.0)
    busy = dict.fromkeys(loops, math.inf)
    for _ in range(rounds):
        for each, stepped in loops.items():
            rate, cpu = _rate(stepped, step.feeds, shared.processes if each == "shared" else ())
            best[each], busy[each] = max(best[each], rate), min(busy[each], cpu)
    memory_mb = max(map(_memory_mb, shared.processes), default=0.0)
    shared.close()
    details = {
        "processes": processes,
        "apart": apart,
        "work": round(busy["alone"] / busy["shared"], 3),
        "meetings": cut.meetings,
        "memory_mb": round(memory_mb, 1),
        "cut_s": round(cut_s, 3),
        "start_s": round(start_s, 3),
        "load": round(load, 2),
        "cores": os.cpu_count(),
    }
    budget = case.budget if processes == 2 else None
    return [
        Line(name, best["shared"], "steps/s", Peer("one thread", best["alone"]), budget, details),
        Line(
            f"{name}_threads", best["shared"], "steps/s", Peer(f"{processes} threads", best["threaded"]), None, details
        ),
    ]


def _rate(
    step: Callable[[Mapping[str, NDArray]], None], feeds: Mapping[str, NDArray], others: Sequence[int]
) -> tuple[float, float]:
    """Steps a second over one block, and the seconds of a core that a step took of the busiest process."""
    begun, count = time.perf_counter(), 0
    before = [time.process_time(), *map(_cpu_s, others)]
    while (took := time.perf_counter() - begun) < BLOCK_S or count < 4:
        step(feeds)
        count += 1
    after = [time.process_time(), *map(_cpu_s, others)]
    return count / took, max(late - early for early, late in zip(before, after, strict=True)) / count


def _cpu_s(process: int) -> float:
    """Seconds of a core that another process has had, in steps of a hundredth."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mb(process: int) -> float:
    """What a process holds, but for files."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return sum(int(status.split(f"{kind}:")[1].split()[0]) for kind in ("RssAnon", "RssShmem")) * 1024 / 1e6


def main() -> None:
    """Measure what was asked for, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    for name in arguments.only:
        for line in measure(name, CASES[name], arguments.processes, arguments.rounds):
            show(line, as_json=arguments.json)


if __name__ == "__main__":
    main()
