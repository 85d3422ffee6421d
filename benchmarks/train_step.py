"""Time of one training step, coterie against PyTorch, on the CPU.

    python benchmarks/train_step.py --json --threads 1 [--only tiny_mlp_b16_sgd ...] [--rounds 60] [--clock wall|cpu]
    [--profile FOLDER]

A step is forward, loss, gradients and update, on a new batch every time on both sides: coterie copies it into bound
memory, PyTorch wraps the same NumPy arrays. Each case prints one JSON line: case, threads, clock, ours_us, torch_us,
ratio = ours/torch, the largest difference of the two losses over the first steps, parameters. A block is about 5 ms.
Times are the minimum over rounds of interleaved blocks of steps, so both sides see the same machine. Without PyTorch
torch_us and ratio are null. PyTorch runs eagerly (its Adam fused, its SGD fused where this version has that on the
CPU).
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import cycle
from typing import Any

import numpy as np

from coterie.compute import nn, optim
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.ir import Graph, NDArray
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named

torch: Any = None
with suppress(ImportError):
    torch = import_module("torch")

BATCHES = 64


@dataclass(frozen=True)
class Case:
    """One model, batch size and optimizer; images are [1, 28, 28]."""

    name: str
    model: nn.Sequential
    example: tuple[int, ...]
    classes: int
    batch: int
    optimizer: optim.Optimizer


IMAGE = (1, 28, 28)
CASES = (
    Case("tiny_mlp_b16_sgd", nn.models.mlp([20, 16, 2]), (20,), 2, 16, optim.sgd(0.05)),
    Case("mlp200_b32_sgd", nn.models.mlp([784, 200, 200, 10]), (784,), 10, 32, optim.sgd(0.05)),
    Case("mlp512_b32_sgd", nn.models.mlp([784, 512, 512, 10]), (784,), 10, 32, optim.sgd(0.05)),
    Case("mlp512_b32_adam", nn.models.mlp([784, 512, 512, 10]), (784,), 10, 32, optim.adam(1e-3)),
    Case("lenet_b16_sgd", nn.models.lenet(), IMAGE, 10, 16, optim.sgd(0.05)),
    Case("fedavg_cnn_b32_sgd", nn.models.fedavg_cnn(), IMAGE, 10, 32, optim.sgd(0.05)),
)


def step_graph(case: Case, state: dict[str, NDArray]) -> Graph:
    """The whole step as a graph, with weighted rows and a switch for padding steps, as a plan has it."""

    def step(inputs: GraphInputs) -> dict[str, Array]:
        def group(role: str) -> dict[str, Array]:
            return {name.removeprefix(role): array for name, array in inputs.items() if name.startswith(role)}

        weight = inputs["batch/sample_weight"] / xp.maximum(xp.sum(inputs["batch/sample_weight"]), 1.0)

        def loss(params: dict[str, Array]) -> Array:
            return xp.sum(
                softmax_cross_entropy(case.model(params, inputs["batch/x"], nn.train()), inputs["batch/y"]) * weight
            )

        value, gradients = value_and_grad(loss)(group("shared/"))
        moved, after = case.optimizer.update(
            gradients, group("optimizer/"), group("shared/"), group("hyper/"), inputs["hyper/active"]
        )
        carried = {f"shared/{name}": array for name, array in moved.items()} | {
            f"optimizer/{name}": array for name, array in after.items()
        }
        return {f"next/{name}": array for name, array in carried.items()} | {"metric/loss": value}

    scalars = [f"hyper/{name}" for name in (*case.optimizer.hyper, "active")]
    specs = {name: TensorSpec(array.shape) for name, array in state.items()} | {
        name: TensorSpec((1,)) for name in scalars
    }
    specs |= {
        "batch/x": TensorSpec((case.batch, *case.example)),
        "batch/y": TensorSpec((case.batch,), "int32"),
        "batch/sample_weight": TensorSpec((case.batch,)),
    }
    return optimise(trace_named(step, specs))


def batches(case: Case) -> list[tuple[NDArray, NDArray]]:
    """Different batches, so that no side works on data that it has just seen."""
    rng = np.random.default_rng(0)
    return [
        (
            rng.normal(size=(case.batch, *case.example)).astype(np.float32),
            rng.integers(0, case.classes, case.batch).astype(np.int32),
        )
        for _ in range(BATCHES)
    ]


Step = Callable[[], float]


def our_step(
    case: Case, data: list[tuple[NDArray, NDArray]], threads: int, profile: str | None
) -> tuple[Callable[[], None], Step, Executable]:
    """A function that makes one step, one that reads the last loss, and the executable."""
    params = case.model.init(0)
    first = case.optimizer.init({name: Array(array) for name, array in params.items()})
    state = {f"shared/{name}": array for name, array in params.items()} | {
        f"optimizer/{name}": array.numpy() for name, array in first.items()
    }
    prefix = None if profile is None else os.path.join(profile, case.name)
    executable = Executable(
        to_onnx(step_graph(case, state), name=case.name), threads=threads, spinning=True, profile_prefix=prefix
    )
    loop = StepLoop(executable, carry={f"next/{name}": name for name in state}, constants={}, state=state)
    hyper = {
        f"hyper/{name}": np.array([value], np.float32)
        for name, value in {**case.optimizer.hyper, "active": 1.0}.items()
    }
    weight = np.ones(case.batch, np.float32)
    feeds = cycle([{"batch/x": x, "batch/y": y, "batch/sample_weight": weight, **hyper} for x, y in data])
    return lambda: loop.step(next(feeds)), lambda: loop.read(["metric/loss"])["metric/loss"].item(), executable


def torch_model(model: nn.Sequential) -> Any:
    """The same model with the same first weights in PyTorch."""

    def layer(module: nn.Module) -> Any:
        match module:
            case nn.Linear():
                return torch.nn.Linear(module.inputs, module.outputs)
            case nn.Conv2d():
                return torch.nn.Conv2d(module.inputs, module.outputs, module.kernel, module.stride, module.padding)
            case nn.MaxPool2d():
                return torch.nn.MaxPool2d(module.kernel)
            case nn.ReLU():
                return torch.nn.ReLU()
            case nn.Flatten():
                return torch.nn.Flatten()
            case _:
                raise ValueError(f"no PyTorch layer for {module}")

    twin = torch.nn.Sequential(*map(layer, model.layers))
    values = {name: torch.from_numpy(array) for name, array in model.init(0).items()}
    twin.load_state_dict(values)
    return twin


def torch_optimizer(case: Case, parameters: Iterable[Any]) -> Any:
    """Its SGD or Adam, fused where it can be."""
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[case.optimizer.name]
    tensors = list(parameters)
    try:
        return kind(tensors, lr=case.optimizer.hyper["lr"], fused=True)
    except (RuntimeError, TypeError):
        return kind(tensors, lr=case.optimizer.hyper["lr"])


def torch_step(case: Case, data: list[tuple[NDArray, NDArray]]) -> tuple[Callable[[], None], Step]:
    """As ``our_step``."""
    model = torch_model(case.model)
    optimizer = torch_optimizer(case, model.parameters())
    feeds = cycle([(x, y.astype(np.int64)) for x, y in data])
    last: list[Any] = [None]

    def step() -> None:
        x, y = next(feeds)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        optimizer.step()
        last[0] = loss

    return step, lambda: float(last[0].detach())


Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


def block(step: Callable[[], None], count: int, clock: Clock) -> float:
    """Microseconds per step over one block of steps."""
    start = clock()
    for _ in range(count):
        step()
    return (clock() - start) / count * 1e6


def measure(case: Case, threads: int, rounds: int, clock: Clock, profile: str | None) -> dict[str, Any]:
    """One line of the result."""
    data = batches(case)
    ours, our_loss, executable = our_step(case, data, threads, profile)
    theirs, their_loss = (None, None) if torch is None else torch_step(case, data)
    difference = 0.0
    for _ in range(5):
        ours()
        if theirs is not None and their_loss is not None:
            theirs()
            difference = max(difference, abs(our_loss() - their_loss()))
    count = max(1, math.ceil(5_000 / block(ours, 3, clock)))
    best_ours = best_theirs = math.inf
    for _ in range(rounds):
        best_ours = min(best_ours, block(ours, count, clock))
        if theirs is not None:
            best_theirs = min(best_theirs, block(theirs, count, clock))
    if profile is not None:
        executable.session.end_profiling()
    return {
        "case": case.name,
        "threads": threads,
        "clock": next(name for name, each in CLOCKS.items() if each is clock),
        "ours_us": round(best_ours, 1),
        "torch_us": None if theirs is None else round(best_theirs, 1),
        "ratio": None if theirs is None else round(best_ours / best_theirs, 3),
        "loss_difference": None if theirs is None else difference,
        "parameters": case.model.count(),
    }


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON line a case (otherwise a table)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=[case.name for case in CASES], default=None)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: processor time, for a machine that is busy otherwise"
    )
    parser.add_argument(
        "--profile", metavar="FOLDER", help="write ONNX Runtime's profile of each case there (slower: not for figures)"
    )
    options = parser.parse_args()
    if torch is not None:
        torch.set_num_threads(options.threads)
        torch.manual_seed(0)
    for case in CASES:
        if options.only is not None and case.name not in options.only:
            continue
        line = measure(case, options.threads, options.rounds, CLOCKS[options.clock], options.profile)
        text = json.dumps(line) if options.json else "  ".join(f"{name} {value}" for name, value in line.items())
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
