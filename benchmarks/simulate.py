"""What a simulated round costs, beside Flower's and pfl's on the same data and machine; and what memory it takes.

    python benchmarks/simulate.py [--json] [--quick] [--data mnist.npz] [--cases mnist trivial batched memory]
    python benchmarks/simulate.py --peers FOLDER --flower PYTHON --pfl PYTHON     # and the peers, in the same run

mnist: 100 clients over MNIST (Dirichlet 0.5), 10 a round, one local epoch of SGD, batch 32, MLP 784-200-200-10; every
engine with two workers. trivial: 50 clients that add a constant to 1e6 weights, so that the round is all overhead;
numpy: no engine, just the passes over those numbers that a round consists of, on two threads.
batched: seconds a round of threads over those of `batched`, for models from tiny to that MLP: when to choose it.
memory: peak of a run with 10 000 virtual clients over that with 1 000.

A round's time is the median over rounds without the first, in which graphs are loaded and processes started. Every case
runs in a process of its own, and prints one line (see lines.py), or one for each peer; ratios are those of medians of
one run of this script. A peer's scripts wait for an idle machine before they start, unless --no-wait is given. PYTHON
is the interpreter of an environment with the peer (flwr[simulation], pfl[pytorch], CPU torch); FOLDER has the peers'
scripts.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from lines import Budget, Line, Peer, at_least, at_most, read, show
from numpy.typing import NDArray

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.client_sdk.device.trainers.external import ExternalTrainer, FitResult, FitTask, Params
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import VirtualClients, simulate

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "../shared/data/mnist.npz"
SMALL = DataSchema((Feature(name="x", shape=(1,)),), Label(name="y", low=0, high=1))
CASES = ("mnist", "trivial", "batched", "memory")
ENGINES = ("threads", "processes", "batched:5")
MODELS = {"tiny 8-16-4": (8, 16, 4), "small 64-32-10": (64, 32, 10), "mnist 784-200-200-10": (784, 200, 200, 10)}
PER_SECOND, SECONDS = "rounds a second", "s a round"
# Of a case by threads, beside a peer.
BUDGETS: Mapping[tuple[str, str], Budget] = {
    ("mnist/threads", "flower"): at_least(5.0, "ratio"),
    ("mnist/threads", "pfl"): at_least(1.5, "ratio"),
    ("trivial/threads", "flower"): at_most(0.05, "ratio"),
}


def fit(params: Params, task: FitTask) -> FitResult:
    """A client that costs next to nothing, as Flower's trivial client does."""
    return {name: value + np.float32(0.01) for name, value in params.items()}, 10, 1, {}


TRAINER = ExternalTrainer(fit)


def mnist(data: Path) -> VirtualClients:
    """The peers' partition of MNIST, by their rule and their generator."""
    loaded = np.load(data)
    x = ((loaded["x_train"].reshape(-1, 784).astype(np.float32) / 255 - 0.1307) / 0.3081).astype(np.float32)
    y = loaded["y_train"].astype(np.int32)
    return VirtualClients.of({"x": x, "y": y}, dirichlet_partition(y))


def dirichlet_partition(
    y: NDArray[np.int32], clients: int = 100, alpha: float = 0.5, seed: int = 0, least: int = 10
) -> list[NDArray[np.int64]]:
    """Redrawn until every client has at least ``least`` rows."""
    generator = np.random.default_rng(seed)
    while True:
        parts: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
        for label in np.unique(y):
            rows = generator.permutation(np.flatnonzero(y == label))
            cuts = (np.cumsum(generator.dirichlet([alpha] * clients))[:-1] * len(rows)).astype(int)
            for part, piece in zip(parts, np.split(rows, cuts), strict=True):
                part.append(piece)
        joined = [np.concatenate(part) for part in parts]
        if min(map(len, joined)) >= least:
            return joined


def classifier(sizes: tuple[int, ...], rounds: int, cohort: int) -> Experiment:
    """An MLP, one local epoch of SGD."""
    return Experiment(
        name="simulate",
        model=mlp(sizes),
        schema=DataSchema((Feature(name="x", shape=(sizes[0],)),), Label(name="y", low=0, high=sizes[-1] - 1)),
        loss=softmax_cross_entropy,
        optimizer=sgd(0.1),
        batch_size=32,
        holdout=0.0,
        rounds=RoundPolicy(rounds=rounds, cohort=cohort, evaluate_every=0),
        secure_aggregation=False,
    )


def timed(experiment: Experiment, clients: Any, **how: Any) -> float:
    """Seconds a round, the first left out."""
    history = simulate(experiment, clients, **how)
    if len(history.committed) != experiment.rounds.rounds:
        sys.exit(f"only {len(history.committed)} rounds were committed: {history.to_dicts()}")
    return statistics.median(record.seconds or 0.0 for record in history.rounds[1:])


def run_mnist(engine: str, options: argparse.Namespace) -> Line:
    """One engine with two workers."""
    experiment = classifier((784, 200, 200, 10), 4 if options.quick else 21, 10)
    rate = 1 / timed(experiment, mnist(Path(options.data)), engine=engine, workers=2)
    return Line(f"mnist/{engine}", rate, PER_SECOND, details={"seconds": 1 / rate})


def run_trivial(engine: str, options: argparse.Namespace) -> Line:
    """50 clients × 1e6 parameters; on processes the trainer is found by name."""
    if engine == "numpy":
        return run_passes(options)
    experiment = Experiment(
        name="trivial",
        model=ExternalModel({"weights": (1_000_000,)}),
        schema=SMALL,
        holdout=0.0,
        rounds=RoundPolicy(rounds=3 if options.quick else 9, cohort=50, evaluate_every=0),
        secure_aggregation=False,
    )
    rows = {"x": np.zeros((4, 1), np.float32), "y": np.zeros(4, np.int32)}
    trainer = TRAINER if engine == "threads" else "simulate:TRAINER"
    return Line(f"trivial/{engine}", timed(experiment, [rows] * 50, engine=engine, workers=2, trainer=trainer), SECONDS)


def run_passes(options: argparse.Namespace) -> Line:
    """What NumPy takes for the numbers of a trivial round: of each client a copy of the weights, its addition, the
    difference, and that added to a float64 sum; then a mean and the next weights. On two threads, a sum each.
    """
    size, clients, threads = 1_000_000, 50, 2
    weights = np.zeros(size, np.float32)
    # Memory that is freed stays with the process from here on, as in the engine.
    np.empty(31 << 20, np.uint8)

    def work(count: int) -> NDArray[np.float64]:
        total = np.zeros(size, np.float64)
        for _ in range(count):
            copy = weights.copy()
            np.add(total, (copy + np.float32(0.01)) - weights, out=total)
        return total

    seconds: list[float] = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(3 if options.quick else 9):
            begun = time.perf_counter()
            one, other = pool.map(work, [clients // threads] * threads)
            weights = (weights + (one + other) / clients).astype(np.float32)
            seconds.append(time.perf_counter() - begun)
    return Line("trivial/numpy", statistics.median(seconds[1:]), SECONDS)


def run_batched(model: str, options: argparse.Namespace) -> Line:
    """64 clients of 96 rows each, eight in a graph."""
    sizes = MODELS[model]
    experiment = classifier(sizes, 4 if options.quick else 9, 64)

    def rows(number: int) -> dict[str, NDArray[Any]]:
        generator = np.random.Generator(np.random.PCG64(number))
        x = generator.normal(size=(96, sizes[0])).astype(np.float32)
        return {"x": x, "y": generator.integers(0, sizes[-1], 96).astype(np.int32)}

    clients = VirtualClients(64, rows)
    threads = timed(experiment, clients, workers=2)
    together = timed(experiment, clients, engine="batched:8", workers=2)
    return Line(f"batched/{model}", 1 / together, PER_SECOND, Peer("threads", 1 / threads))


def run_memory(count: str, options: argparse.Namespace) -> Line:
    """A run over so many virtual clients, each with rows of its own."""

    def rows(number: int) -> dict[str, NDArray[Any]]:
        generator = np.random.Generator(np.random.PCG64(number))
        y = generator.integers(0, 10, 200).astype(np.int32)
        return {"x": generator.normal(size=(200, 784)).astype(np.float32), "y": y}

    experiment = classifier((784, 200, 200, 10), 3 if options.quick else 12, 50)
    seconds = timed(experiment, VirtualClients(int(count), rows), workers=2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Line(f"memory/{count}", peak, "MiB", details={"seconds": seconds})


RUNS: Mapping[str, tuple[Callable[[str, argparse.Namespace], Line], tuple[str, ...]]] = {
    "mnist": (run_mnist, ENGINES),
    "trivial": (run_trivial, ("threads", "processes", "numpy")),
    "batched": (run_batched, tuple(MODELS)),
    "memory": (run_memory, ("1000", "10000")),
}

_PEERS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("mnist", "flower"): ("flower_mnist.py", "--model", "mlp", "--batch", "32"),
    ("mnist", "pfl"): ("pfl_mnist.py", "--model", "mlp", "--batch", "32", "--threads", "1"),
    ("trivial", "flower"): ("flower_sim.py", "--clients", "50", "--params", "1e6"),
}
# Runs a peer's script at once: its own wait for an idle machine is put off.
_AT_ONCE = (
    "import sys, runpy; sys.path.insert(0, sys.argv[1]); import common; common.wait_quiet = lambda *a, **k: None; "
    "script = sys.argv[2]; sys.argv = sys.argv[2:]; runpy.run_path(script, run_name='__main__')"
)


def run_peer(case: str, peer: str, options: argparse.Namespace) -> float | None:
    """A peer's seconds a round; None where it is not asked for."""
    python, command = getattr(options, peer), _PEERS.get((case, peer))
    if python is None or command is None:
        return None
    folder, rounds = Path(options.peers).resolve(), "4" if options.quick else "20" if case == "mnist" else "8"
    arguments = [str(folder / command[0]), *command[1:], "--rounds", rounds]
    if case == "mnist":
        arguments += ["--data", str(Path(options.data).resolve())]
    if peer == "pfl":
        start = [os.fspath(Path(python).parent / "torchrun"), "--nproc-per-node", "2"]
    else:
        start = [python, "-c", _AT_ONCE, str(folder)] if options.no_wait else [python]
    done = subprocess.run([*start, *arguments], capture_output=True, text=True, cwd=folder)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"bench"')]
    if not lines:
        sys.exit(f"{peer} gave no result for {case}: {done.stderr[-2000:]}")
    return float(json.loads(lines[-1])["result"]["s_per_round"]["median"])


def in_a_process(case: str, variant: str, options: argparse.Namespace) -> Line:
    """One case in a process of its own, which also finds this file as a module."""
    command = [sys.executable, os.fspath(Path(__file__)), "--case", f"{case}/{variant}", "--data", str(options.data)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *filter(None, sys.path)))}
    command += ["--quick"] if options.quick else []
    return read(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout)


def measure(options: argparse.Namespace) -> None:
    """All chosen cases, one line each, or one for each peer."""
    for case in options.cases:
        peers = {peer: run_peer(case, peer, options) for peer in ("flower", "pfl")}
        before: Peer | None = None
        for variant in RUNS[case][1]:
            line = in_a_process(case, variant, options)
            if case == "memory":
                line, before = replace(line, peer=before), Peer(f"{variant} clients", line.figure)
            for each in beside(line, peers) or [line]:
                show(each, as_json=options.json)


def beside(line: Line, peers: Mapping[str, float | None]) -> list[Line]:
    """A case once for each peer that ran it. peers: their seconds a round."""
    figures = {
        name: 1 / seconds if line.unit == PER_SECOND else seconds
        for name, seconds in peers.items()
        if seconds is not None
    }
    return [
        replace(line, peer=Peer(name, figure), budget=BUDGETS.get((line.case, name)))
        for name, figure in figures.items()
    ]


def main() -> None:
    """Run the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it runs")
    parser.add_argument("--cases", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--data", default=os.fspath(DATA), help="MNIST as x_train, y_train (uint8) in an .npz")
    parser.add_argument("--peers", default=os.fspath(ROOT / "../shared/peers"), help="the folder of the peers' scripts")
    parser.add_argument("--flower", help="the interpreter of an environment with Flower")
    parser.add_argument("--pfl", help="the interpreter of an environment with pfl")
    parser.add_argument("--no-wait", action="store_true", help="let peers start on a busy machine too")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        case, _, variant = options.case.partition("/")
        show(RUNS[case][0](variant, options), as_json=True)
        return
    measure(options)


if __name__ == "__main__":
    main()
