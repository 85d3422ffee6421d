"""Time of one training step, coterie against PyTorch and JAX, on the CPU.

    python benchmarks/train_step.py --json --threads 1 [--jax-python PATH] [--torch-python PATH]
    [--only tiny_mlp_b16_sgd ...] [--rounds 60] [--clock wall|cpu] [--profile FOLDER]

A step is forward, loss, gradients and update, on a new batch of NumPy arrays every time on all sides: coterie copies it
into bound memory, PyTorch wraps it, JAX takes it as an argument. Each case prints one JSON line: case, threads, clock,
ours_us, torch_us, jax_us, ratio (to the faster of the two), budget, met (null without a peer), the largest difference
between the sides' losses over the first steps, compile_ms (from tracing to a session that is ready), parameters, nodes.
Times are the minimum over rounds of interleaved blocks of about 20 ms. The first line is the import of coterie.compute,
in a process of its own, against that of NumPy.

The peers run in processes of their own, which may belong to other environments; default: this interpreter, where it
has the framework. An absent peer is null, and ratio is to the other. JAX has no ResNet-18 and no BERT here. With
--threads 1 every process stays on one and the same core.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from typing import Any

import numpy as np
from step_data import WORKLOADS, Workload
from step_ours import prepare
from step_peer import CLOCKS, Peer, block

FIRST_STEPS = 5
# Microseconds of a block: long enough that a side finds its own data in the caches again for most of it.
BLOCK = 20_000


def measure(
    workload: Workload, peers: list[Peer], threads: int, rounds: int, clock: str, profile: str | None
) -> dict[str, Any]:
    """One line of the result."""
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
    fastest = min(theirs.values(), default=None)
    return {
        "case": workload.name,
        "threads": threads,
        "clock": clock,
        "ours_us": round(best, 1),
        **{f"{name}_us": round(theirs[name], 1) if name in theirs else None for name in ("torch", "jax")},
        "ratio": None if fastest is None else round(best / fastest, 3),
        "budget": workload.budget,
        "met": None if fastest is None else best / fastest <= workload.budget,
        "loss_difference": difference if peers else None,
        "compile_ms": round(ours.compile_ms, 1),
        "parameters": sum(array.size for array in ours.weights.values()),
        "nodes": ours.nodes,
    }


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
    parser.add_argument("--json", action="store_true", help="one JSON line a case (otherwise a table)")
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

    def tell(line: dict[str, Any]) -> None:
        print(
            json.dumps(line) if options.json else "  ".join(f"{name} {value}" for name, value in line.items()),
            flush=True,
        )

    if options.threads == 1:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if options.only is None:
        ours, numpy = import_seconds("coterie.compute"), import_seconds("numpy")
        tell(
            {
                "case": "import coterie.compute",
                "seconds": round(ours, 3),
                "numpy_seconds": round(numpy, 3),
                "budget": 0.2,
                "met": ours <= 0.2,
            }
        )
    peers = start_peers(options)
    try:
        for workload in WORKLOADS:
            if options.only is None or workload.name in options.only:
                tell(measure(workload, peers, options.threads, options.rounds, options.clock, options.profile))
    finally:
        for peer in peers:
            peer.close()


if __name__ == "__main__":
    main()
