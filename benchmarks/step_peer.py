"""A peer of benchmarks/train_step.py in a process and an environment of its own, timed on command.

    python step_peer.py torch|jax|opacus --threads 1

reads one JSON object a line and answers with one: {"load": workload, "weights": an .npz by coterie's names} prepares;
{"steps": n, "clock": "wall"|"cpu"} makes n steps and answers {"us": microseconds a step, "loss": the last}.
Frameworks are imported after the process has been bound to its cores, because XLA sizes its threads by them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def block(step: Callable[[], None], count: int, clock: str) -> float:
    """Microseconds a step over one block of steps."""
    now = CLOCKS[clock]
    start = now()
    for _ in range(count):
        step()
    return (now() - start) / count * 1e6


class Peer:
    """The other end. framework: torch or jax; python: the interpreter that has it. version: the framework's."""

    def __init__(self, framework: str, python: str, threads: int) -> None:
        self.framework = framework
        command = [python, str(Path(__file__).resolve()), framework, "--threads", str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.version: str = self._answer()["version"]

    def load(self, workload: str, weights: str) -> None:
        """Prepare a workload."""
        self._ask({"load": workload, "weights": weights})

    def steps(self, count: int, clock: str) -> dict[str, float]:
        """Make steps: us a step, and the last loss."""
        return self._ask({"steps": count, "clock": clock})

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process.stdin is None:
            raise RuntimeError(f"The process of {self.framework} has no input.")
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = "" if self._process.stdout is None else self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"The process of {self.framework} ended with status {self._process.wait()}.")
        return json.loads(line)


def main() -> None:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=("torch", "jax", "opacus"))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(cores[-options.threads :]))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(options.threads)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a framework prints is no answer

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    import numpy as np
    from step_data import BY_NAME

    side = import_module(f"step_{options.framework}")
    answer({"version": import_module(options.framework).__version__})
    step: Callable[[], None] = lambda: None  # noqa: E731
    loss: Callable[[], float] = lambda: float("nan")  # noqa: E731
    for line in sys.stdin:
        request = json.loads(line)
        if "load" in request:
            with np.load(request["weights"]) as weights:
                step, loss = side.prepare(BY_NAME[request["load"]], dict(weights), options.threads)
            answer({})
        else:
            answer({"us": block(step, request["steps"], request["clock"]), "loss": loss()})


if __name__ == "__main__":
    main()
