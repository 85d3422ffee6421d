"""Time of one private training step: per-example clipping against coterie's own SGD step, and against Opacus.

    python benchmarks/private_step.py --json --threads 1 [--only mlp512_b32_sgd ...] [--rounds 40] [--clock wall|cpu]
    [--opacus-python PYTHON] [--oracle]

Sides, all with the same model and optimizer, on a new batch every step: ``own``, the plain step; ``clip``, the sum of
clipped per-example gradients with no noise; ``private``, that with the discrete Gaussian noise which devices draw for
every step; with --oracle ``vmap``, the definition of clipping, a gradient for every example. With --opacus-python, a
Python that has Opacus (see step_opacus.py), its steps run in a process of their own. glibc is told there to keep freed
memory, without which Opacus is slower.

Each case prints ``clip`` beside ``own``, and beside Opacus where it runs, as lines (see lines.py): the minimum over
rounds of interleaved blocks, in microseconds a step. compile_ms: from tracing ``clip`` to a session that is ready.
"""

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle
from typing import Any

import numpy as np
from lines import Line, Peer, at_most, show
from step_data import BY_NAME, Workload, batches
from step_ours import batch_specs, losses, model, optimizer, prepare
from step_peer import CLOCKS, block
from step_peer import Peer as Framework

from coterie.compute import nn
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.batching import vmap
from coterie.compute.clipping.transform import clipped_grad, noised_mean
from coterie.compute.ir import Graph, NDArray
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.privacy.dp.noise import discrete_gaussian
from coterie.privacy.dp.noise.source import NoiseSource

# The wanted ratios to the own step; 0.25 of Opacus where there is one. Others are measured for information.
BUDGETS = {"mlp512_b32_sgd": at_most(1.15, "ratio"), "fedavg_cnn_b32_sgd": at_most(1.6, "ratio")}
CASES = (*BUDGETS, *(name for name in BY_NAME if name not in BUDGETS))
OPACUS_BUDGET = at_most(0.25, "ratio")
CLIP, NOISE_MULTIPLIER, GRID = 1.0, 1.0, 2.0**-22
KEEP = {"MALLOC_MMAP_THRESHOLD_": "2000000000", "MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_TOP_PAD_": "268435456"}


@dataclass(frozen=True)
class Side:
    """How a step makes its gradient."""

    name: str
    noise: bool = False
    oracle: bool = False


CLIPPED, NOISED, ORACLE = Side("clip"), Side("private", noise=True), Side("vmap", oracle=True)


def by_definition(
    fn: Callable[..., Array], params: Mapping[str, Array], x: Array, y: Array, weight: Array, clip: Array
) -> tuple[dict[str, Array], Array]:
    """The sum of clipped gradients, each of which is made, and the losses."""

    def of_one(params: Mapping[str, Array], x: Array, y: Array, weight: Array) -> Any:
        def loss(params: Mapping[str, Array]) -> Array:
            return fn(params, xp.expand_dims(x, 0), xp.expand_dims(y, 0))[0] * weight

        return value_and_grad(loss)(params)

    found, gradients = vmap(of_one, (None, 0, 0, 0))(dict(params), x, y, weight)
    flat = {name: xp.reshape(g, (g.shape[0], -1)) for name, g in gradients.items()}
    squares = xp.sum(xp.concat([xp.sum(g * g, axis=1, keepdims=True) for g in flat.values()], axis=1), axis=1)
    scales = xp.reshape(clip / xp.sqrt(xp.maximum(squares, clip * clip)), (1, -1))
    return {name: xp.reshape(scales @ flat[name], params[name].shape) for name in flat}, found


def step_graph(workload: Workload, state: Mapping[str, NDArray], side: Side) -> Graph:
    """The whole step, with weighted rows and a switch for padding steps."""
    net, rule = model(workload), optimizer(workload)

    def fn(params: Mapping[str, Array], x: Array, y: Array) -> Array:
        return losses(net(params, x, nn.train()), y)

    def step(inputs: GraphInputs) -> dict[str, Array]:
        def group(role: str) -> dict[str, Array]:
            return {name.removeprefix(role): array for name, array in inputs.items() if name.startswith(role)}

        params, x, y = group("shared/"), inputs["batch/x"], inputs["batch/y"]
        weight, clip = inputs["batch/sample_weight"], inputs["hyper/clip"]
        if side.oracle:
            total, found = by_definition(fn, params, x, y, weight, clip)
        else:
            clipped = clipped_grad(fn, clip)(params, x, y, sample_weight=weight)
            total, found = clipped.gradient, clipped.losses * weight
        if side.noise:
            mean = noised_mean(total, group("random/"), grid=GRID, count=workload.batch)
        else:
            mean = {name: gradient * (1.0 / workload.batch) for name, gradient in total.items()}
        moved, after = rule.update(mean, group("optimizer/"), params, group("hyper/"), inputs["hyper/active"])
        outputs = {f"next/shared/{name}": array for name, array in moved.items()}
        outputs |= {f"next/optimizer/{name}": array for name, array in after.items()}
        return outputs | {"metric/loss": xp.sum(found) * (1.0 / workload.batch)}

    specs = {name: TensorSpec(array.shape) for name, array in state.items()}
    if side.noise:
        specs |= {name: TensorSpec(shape, "int32") for name, shape in noise_shapes(state).items()}
    specs |= {f"hyper/{name}": TensorSpec((1,)) for name in hyper(workload)}
    return optimise(trace_named(step, specs | batch_specs(workload)))


def hyper(workload: Workload) -> dict[str, float]:
    """Runtime scalars and their values."""
    return {**optimizer(workload).hyper, "active": 1.0, "clip": CLIP}


def noise_shapes(state: Mapping[str, NDArray]) -> dict[str, tuple[int, ...]]:
    """The noise of a step: as much as there are parameters."""
    return {
        name.replace("shared/", "random/"): array.shape for name, array in state.items() if name.startswith("shared/")
    }


@dataclass(frozen=True)
class Prepared:
    """A step, the last loss, and what it took to build."""

    step: Callable[[], None]
    loss: Callable[[], float]
    compile_ms: float


def private(workload: Workload, threads: int, side: Side) -> Prepared:
    """Build and load the private step of a workload."""
    weights = model(workload).init(0)
    first = optimizer(workload).init({name: Array(array) for name, array in weights.items()})
    state = {f"shared/{name}": array for name, array in weights.items()}
    state |= {f"optimizer/{name}": array.numpy() for name, array in first.items()}
    start = time.perf_counter()
    content = to_onnx(step_graph(workload, state, side), name=workload.name)
    executable = Executable(content, threads=threads, spinning=True)
    compiled = time.perf_counter() - start
    carry = {f"next/{name}": name for name in state}
    loop = StepLoop(executable, carry=carry, constants={}, state=state, in_place=True)
    scalars = {f"hyper/{name}": np.array([value], np.float32) for name, value in hyper(workload).items()}
    weight = np.ones(workload.batch, np.float32)
    feeds = cycle(
        [{"batch/x": x, "batch/y": y, "batch/sample_weight": weight, **scalars} for x, y in batches(workload)]
    )
    shapes = noise_shapes(state)
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])

    variance = Fraction(CLIP * NOISE_MULTIPLIER / GRID) ** 2

    def noise() -> dict[str, NDArray]:
        drawn = discrete_gaussian.draw(int(ends[-1]), variance, NoiseSource.fresh()).astype(np.int32)
        parts = np.split(drawn, ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def step() -> None:
        loop.step({**next(feeds), **noise()} if side.noise else next(feeds))

    return Prepared(step, lambda: loop.read(["metric/loss"])["metric/loss"].item(), compiled * 1e3)


def peer_for(workload: Workload, options: argparse.Namespace) -> Framework | None:
    """Opacus, ready to step, where there is one and it has the workload."""
    if options.opacus_python is None or workload.tokens or workload.optimizer != "sgd":
        return None
    os.environ.update(KEEP)
    peer = Framework("opacus", options.opacus_python, options.threads)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "weights.npz")
        np.savez(path, **model(workload).init(0))  # pyright: ignore[reportArgumentType]
        peer.load(workload.name, path)
    return peer


def measure(workload: Workload, options: argparse.Namespace) -> list[Line]:
    """The lines of a case."""
    clock: str = options.clock
    sides = {side.name: private(workload, options.threads, side) for side in (CLIPPED, NOISED)}
    if options.oracle:
        sides["vmap"] = private(workload, options.threads, ORACLE)
    steps = {"own": prepare(workload, options.threads, None).step} | {name: side.step for name, side in sides.items()}
    peer = peer_for(workload, options)
    difference = 0.0
    for _ in range(3):
        for step in steps.values():
            step()
        found = [sides[name].loss() for name in sides if name != "private"]
        found += [] if peer is None else [peer.steps(1, clock)["loss"]]
        difference = max(difference, max(found) - min(found))
    counts = {name: max(1, math.ceil(5_000 / block(step, 2, clock))) for name, step in steps.items()}
    best = dict.fromkeys((*steps, "opacus"), math.inf)
    for turn in range(options.rounds):
        for name, step in steps.items():
            if name != "vmap" or turn % 10 == 0:
                best[name] = min(best[name], block(step, counts[name], clock))
        if peer is not None and turn % 4 == 0:
            best["opacus"] = min(best["opacus"], peer.steps(2, clock)["us"])
    if peer is not None:
        peer.close()
    details = {
        "threads": options.threads,
        "clock": clock,
        **{f"{name}_us": round(best[name], 1) for name in sides if name != "clip"},
        "loss_difference": difference,
        "compile_ms": round(sides["clip"].compile_ms, 1),
    }
    case, clip, budget = workload.name, best["clip"], BUDGETS.get(workload.name)
    lines = [Line(case, clip, "us", Peer("own", best["own"]), budget, details)]
    if peer is not None:
        opacus = Peer("Opacus", best["opacus"])
        lines.append(Line(f"{case}, beside Opacus", clip, "us", opacus, OPACUS_BUDGET if budget else None))
    return lines


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=CASES, default=CASES)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: processor time, for a busy machine")
    parser.add_argument("--opacus-python", metavar="PYTHON", help="a Python that has Opacus")
    parser.add_argument("--oracle", action="store_true", help="time the definition too")
    options = parser.parse_args()
    if options.threads == 1:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name in options.only:
        for line in measure(BY_NAME[name], options):
            show(line, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
