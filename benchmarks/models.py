"""What larger models cost to compile, and what a step of them needs in memory with and without recomputation.

    python benchmarks/models.py --json [--only resnet18_b16 ...] [--steps 3]

Each figure is of a process of its own, by one thread. Of every model of ``step_data.MODELS``:

- compile_s: from tracing the training step of the workload to a session that is ready; and how far the process grew at
  its peak meanwhile, above what it held with the weights, as a multiple of the weights' own bytes.
- step_mb: by how much a process that loads the step's file and its state and makes a few steps is larger at its peak
  than before; kept: as it is, again: with ``recompute``, which parts of the model compute again; and the time of a
  step.
- plan_s: the whole of `compile_plan` of an experiment, which traces every stage twice; and how far the process grew at
  its peak, as a multiple of the weights that it drew, without these.

No peer has the same. Lines are as lines.py says.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from lines import Line, at_most, show
from step_data import BY_NAME, MODELS, Workload, batches
from step_ours import first_state, losses, model, optimizer, step_graph

from coterie import DataSchema, Experiment, Feature, Label, RoundPolicy
from coterie.aggregation.compiling.compile import compile_plan
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.optim import sgd
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.step_loop import StepLoop

ANSWER = "answer.json"
# Seconds to compile, and how many times the weights the process may grow meanwhile.
BUDGETS = {"resnet18_b16": (3.0, None), "gpt2_b1": (20.0, 2.5)}


def resident(what: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at the most since the last `forget_peak`."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def forget_peak() -> None:
    """Let the peak begin again at what there is now."""
    Path("/proc/self/clear_refs").write_text("5")


def compiled(workload: Workload, folder: Path) -> dict[str, Any]:
    """Trace, optimise, write and load the step; then write the file with recomputation too."""
    weights = model(workload).init(0)
    shapes = {name: array.shape for name, array in first_state(workload, weights).items()}
    size = sum(array.nbytes for array in weights.values())
    forget_peak()
    before = resident("VmRSS")
    start = time.perf_counter()
    graph = step_graph(workload, shapes)
    data = to_onnx(graph, name=workload.name)
    Executable(data, threads=1)
    seconds, grown = time.perf_counter() - start, resident("VmHWM") - before
    (folder / "kept.onnx").write_bytes(data)
    again = step_graph(workload, shapes, recompute=True)
    (folder / "again.onnx").write_bytes(to_onnx(again, name=workload.name))
    (folder / "shapes.json").write_text(json.dumps(shapes))
    return {"seconds": seconds, "grown": grown / size, "nodes": len(graph.nodes), "weights": size}


def planned(workload: Workload) -> dict[str, Any]:
    """Compile an experiment with the model."""
    x, y = batches(workload)[0]
    net, shape = model(workload), x.shape[1:]
    feature = Feature(name="x", dtype="int32" if x.dtype == np.int32 else "float32", shape=shape)
    experiment = Experiment(
        name=workload.name.replace("_", " "),
        model=net,
        schema=DataSchema((feature,), Label(name="y", shape=y.shape[1:], low=0, high=workload.classes - 1)),
        loss=losses,
        optimizer=sgd(0.01),
        batch_size=workload.batch,
        rounds=RoundPolicy(rounds=1, cohort=2),
        secure_aggregation=False,
    )
    forget_peak()
    before, start = resident("VmRSS"), time.perf_counter()
    size = sum(array.nbytes for array in compile_plan(experiment).initial.values())
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "grown": (resident("VmHWM") - before) / size - 1}


def stepped(workload: Workload, folder: Path, name: str, steps: int) -> dict[str, Any]:
    """Load a step and make some."""
    feeds = batches(workload)
    forget_peak()
    before = resident("VmRSS")
    executable = Executable((folder / f"{name}.onnx").read_bytes(), threads=1)
    shapes: dict[str, list[int]] = json.loads((folder / "shapes.json").read_text())
    state = {key: np.full(shape, 0.01, np.float32) for key, shape in shapes.items()}
    carry = {f"next/{key}": key for key in shapes}
    loop = StepLoop(executable, carry=carry, constants={}, state=state, in_place=True)
    del state
    rule = optimizer(workload)
    hyper = {f"hyper/{key}": np.array([value], np.float32) for key, value in {**rule.hyper, "active": 1.0}.items()}
    weight, best = np.ones(workload.batch, np.float32), float("inf")
    for number in range(steps):
        x, y = feeds[number % len(feeds)]
        start = time.perf_counter()
        loop.step({"batch/x": x, "batch/y": y, "batch/sample_weight": weight, **hyper})
        best = min(best, time.perf_counter() - start)
    return {"peak": resident("VmHWM") - before, "seconds": best}


def apart(folder: Path, child: str, *arguments: str) -> dict[str, Any]:
    """What this script answers in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", child, "--folder", str(folder), *arguments]
    subprocess.run(command, check=True)
    return json.loads((folder / ANSWER).read_text())


def figures(workload: Workload, steps: int) -> Iterator[Line]:
    """The lines of one model."""
    seconds, times = BUDGETS.get(workload.name, (None, None))

    def line(what: str, figure: float, unit: str, budget: float | None = None) -> Line:
        return Line(f"{workload.name}/{what}", figure, unit, budget=None if budget is None else at_most(budget))

    with tempfile.TemporaryDirectory() as path:
        folder, only = Path(path), ("--only", workload.name)
        made = apart(folder, "compile", *only)
        yield line("compile", made["seconds"], "s", seconds)
        yield line("compile_memory", made["grown"], "times the weights", times)
        plan = apart(folder, "plan", *only)
        yield line("plan", plan["seconds"], "s", seconds)
        yield line("plan_memory", plan["grown"], "times the weights", times)
        yield line("weights", made["weights"] / 1e6, "MB")
        for name in ("kept", "again"):
            run = apart(folder, name, *only, "--steps", str(steps))
            yield line(f"step_memory_{name}", run["peak"] / 1e6, "MB")
            yield line(f"step_{name}", run["seconds"], "s")


def main() -> None:
    """Measure the models."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--only", nargs="*", choices=[workload.name for workload in MODELS], default=None)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--child", choices=("compile", "plan", "kept", "again"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        workload = BY_NAME[options.only[0]]
        match options.child:
            case "compile":
                answer = compiled(workload, options.folder)
            case "plan":
                answer = planned(workload)
            case name:
                answer = stepped(workload, options.folder, name, options.steps)
        (options.folder / ANSWER).write_text(json.dumps(answer))
        return
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for workload in MODELS:
        if options.only is None or workload.name in options.only:
            for line in figures(workload, options.steps):
                show(line, as_json=options.json)


if __name__ == "__main__":
    main()
