"""Time of one training step, coterie against PyTorch and JAX, on the CPU.

    python benchmarks/train_step.py --json --threads 1 [--jax-python PATH] [--torch-python PATH]
    [--only tiny_mlp_b16_sgd ...] [--rounds 60] [--clock wall|cpu] [--profile FOLDER]

A step is forward, loss, gradients and update, on a new batch of NumPy arrays every time on all sides: coterie copies it
into bound memory, PyTorch wraps it, JAX takes it as an argument. Each case prints two lines (see lines.py): the step
beside that of the faster of the two, with the largest difference between the sides' losses over the first steps,
parameters and nodes; and the time from tracing to a session that is ready. Times are the minimum over rounds of
interleaved blocks of about 20 ms. The first line is the import of coterie.compute, in a process of its own, against
that of NumPy.

The peers run in processes of their own, which may belong to other environments; default: this interpreter, where it
has the framework. Where one is absent the step is beside the other. JAX has no ResNet-18 and no BERT here. With
--threads 1 every process stays on one and
the same core.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec

import numpy as np
from lines import Line, at_most, show
from lines import Peer as Beside
from step_data import WORKLOADS, Workload
from step_ours import prepare
from step_peer import CLOCKS, Peer, block

FIRST_STEPS = 5
IMPORT_BUDGET = at_most(0.2)
# Milliseconds from tracing to a session that is ready.
COMPILE_BUDGETS = {"fedavg_cnn_b32_sgd": at_most(500.0), "transformer_b16_adam": at_most(2000.0)}
# Microseconds of a block: long enough that a side finds its own data in the caches again for most of it.
BLOCK = 20_000


def measure(
    workload: Workload, peers: list[Peer], threads: int, rounds: int, clock: str, profile: str | None
) -> tuple[Line, Line]:
    """The lines of a case."""
    ours = prepare(workload, threads, profile)
    peers = [peer for peer in peers if not workload.large or peer.framework == "torch"]
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "weights.npz")
        np.savez(file, **ours.weights)  # pyright: ignore[reportArgumentType]
        for peer in peers:
            peer.load(workload.name, file)
    difference = 0.0
    for _ in range(FIRST_STEPS):
        ours.step()
        difference = max([difference, *(abs(ours.loss() - peer.steps(1, clock)["loss"]) for peer in peers)])
    count = max(1, math.ceil(BLOCK / block(ours.step, 3, clock)))
    best = math.inf
    theirs = dict.fromkeys((peer.framework for peer in peers), math.inf)
    for _ in range(rounds):
        best = min(best, block(ours.step, count, clock))
        for peer in peers:
            theirs[peer.framework] = min(theirs[peer.framework], peer.steps(count, clock)["us"])
    if profile is not None:
        ours.executable.session.end_profiling()
    faster = min(theirs, key=lambda name: theirs[name], default=None)
    details = {
        "threads": threads,
        "clock": clock,
        **{f"{name}_us": round(us, 1) for name, us in theirs.items()},
        "loss_difference": difference if peers else None,
        "parameters": sum(array.size for array in ours.weights.values()),
        "nodes": ours.nodes,
    }
    beside = None if faster is None else Beside(faster, theirs[faster])
    case, compiling = workload.name, COMPILE_BUDGETS.get(workload.name)
    return (
        Line(case, best, "us", beside, at_most(workload.budget, "ratio"), details),
        Line(f"{case}, compile", ours.compile_ms, "ms", budget=compiling),
    )


def import_seconds(module: str) -> float:
    """Seconds that an import takes in a new process, without the start of the interpreter; the least of five."""
    code = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    return min(float(run.stdout) for run in runs)


def start_peers(options: argparse.Namespace) -> list[Peer]:
    """The peers that there are."""
    here = {name: sys.executable if find_spec(name) else None for name in ("torch", "jax")}
    pythons = {"torch": options.torch_python or here["torch"], "jax": options.jax_python or here["jax"]}
    return [Peer(name, python, options.threads) for name, python in pythons.items() if python is not None]


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=[workload.name for workload in WORKLOADS], default=None)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--torch-python", metavar="PATH", help="an interpreter that has PyTorch")
    parser.add_argument("--jax-python", metavar="PATH", help="an interpreter that has JAX")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: processor time, for a machine that is busy otherwise"
    )
    parser.add_argument(
        "--profile", metavar="FOLDER", help="write ONNX Runtime's profile of each case there (slower: not for figures)"
    )
    options = parser.parse_args()

    if options.threads == 1:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if options.only is None:
        ours, numpy = import_seconds("coterie.compute"), import_seconds("numpy")
        line = Line("import coterie.compute", ours, "s", Beside("import numpy", numpy), IMPORT_BUDGET)
        show(line, as_json=options.json)
    peers = start_peers(options)
    try:
        for workload in WORKLOADS:
            if options.only is None or workload.name in options.only:
                for line in measure(workload, peers, options.threads, options.rounds, options.clock, options.profile):
                    show(line, as_json=options.json)
    finally:
        for peer in peers:
            peer.close()


if __name__ == "__main__":
    main()
