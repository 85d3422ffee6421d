"""The training steps of benchmarks/train_step.py in coterie, as a plan makes them: weighted rows, a switch for padding
steps, all hyper-parameters inputs.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
from step_data import HEADS, Workload, batches

from coterie.compute import nn, optim
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.ir import Graph, NDArray
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.passes.tune import before_gradients
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.step.buffers import buffers_after
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named


def model(workload: Workload) -> nn.Module:
    """The model of a workload."""
    match workload.kind:
        case "mlp":
            return nn.zoo.mlp(workload.sizes)
        case "lenet":
            return nn.zoo.lenet()
        case "cnn":
            return nn.zoo.fedavg_cnn()
        case "transformer":
            return nn.zoo.transformer(workload.vocabulary, workload.width, HEADS, workload.layers, workload.length)
        case "resnet18":
            return nn.zoo.resnet18(3, workload.classes)
        case "mobilenet_v3":
            return nn.zoo.mobilenet_v3(3, workload.classes, dropout=0)
        case "bert":
            return nn.zoo.bert(workload.vocabulary, workload.classes, workload.width, HEADS, workload.layers, dropout=0)
        case "gpt2":
            size = workload.width
            return nn.zoo.GPT2(workload.vocabulary, size, size // 64, workload.layers, dropout=0)
        case _:
            return nn.zoo.gru(workload.vocabulary, workload.width)


def optimizer(workload: Workload) -> optim.Optimizer:
    """The optimizer of a workload, arranged as plans arrange it."""
    return optim.packed({"sgd": optim.sgd, "adam": optim.adam}[workload.optimizer](workload.rate))


def losses(logits: Array, labels: Array) -> Array:
    """One value per example: for sequences the mean over their tokens."""
    if logits.ndim == 2:
        return softmax_cross_entropy(logits, labels)
    count, steps, classes = logits.shape
    each = softmax_cross_entropy(xp.reshape(logits, (-1, classes)), xp.reshape(labels, (-1,)))
    return xp.mean(xp.reshape(each, (count, steps)), axis=1)


def batch_specs(workload: Workload) -> dict[str, TensorSpec]:
    """What a batch of a workload brings to its step."""
    x, y = batches(workload)[0]
    return {
        "batch/x": TensorSpec(x.shape, x.dtype.name),
        "batch/y": TensorSpec(y.shape, "int32"),
        "batch/sample_weight": TensorSpec((workload.batch,)),
    }


def first_state(workload: Workload, weights: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Weights, running statistics and the optimizer's state by their full names."""
    roles = {name: spec.role for name, spec in model(workload).specs().items()}
    trained = {name: array for name, array in weights.items() if roles[name] == "shared"}
    first = optimizer(workload).init({name: Array(array) for name, array in trained.items()})
    state = {f"{roles[name]}/{name}": array for name, array in weights.items()}
    return state | {f"optimizer/{name}": array.numpy() for name, array in first.items()}


def step_graph(workload: Workload, state: Mapping[str, tuple[int, ...]], *, recompute: bool = False) -> Graph:
    """The whole step as a graph. state: shapes by name. recompute: compute the activations of parts again."""
    net, rule = model(workload), optimizer(workload)

    def step(inputs: GraphInputs) -> dict[str, Array]:
        def group(role: str) -> dict[str, Array]:
            return {name.removeprefix(role): array for name, array in inputs.items() if name.startswith(role)}

        weight = inputs["batch/sample_weight"] / xp.maximum(xp.sum(inputs["batch/sample_weight"]), 1.0)

        statistics, mode = group("buffer/"), replace(nn.train(), recompute=recompute)
        mode = replace(mode, weight=inputs["batch/sample_weight"]) if statistics else mode

        def loss(params: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
            logits, after = nn.forward(net, {**params, **statistics}, inputs["batch/x"], mode)
            return xp.sum(losses(logits, inputs["batch/y"]) * weight), after

        (value, recorded), gradients = value_and_grad(loss, has_aux=True, before=before_gradients("portable"))(
            group("shared/")
        )
        moved, after = rule.update(
            gradients, group("optimizer/"), group("shared/"), group("hyper/"), inputs["hyper/active"]
        )
        carried = {f"shared/{name}": array for name, array in moved.items()} | {
            f"optimizer/{name}": array for name, array in after.items()
        }
        kept = buffers_after(inputs["hyper/active"], recorded, statistics, None)
        carried |= {f"buffer/{name}": array for name, array in kept.items()}
        return {f"next/{name}": array for name, array in carried.items()} | {"metric/loss": value}

    specs = {name: TensorSpec(shape) for name, shape in state.items()}
    specs |= {f"hyper/{name}": TensorSpec((1,)) for name in (*rule.hyper, "active")}
    return optimise(trace_named(step, specs | batch_specs(workload)))


@dataclass(frozen=True)
class Ours:
    """A prepared step. compile_ms: from tracing to a session that is ready."""

    step: Callable[[], None]
    loss: Callable[[], float]
    executable: Executable
    weights: dict[str, NDArray]
    compile_ms: float
    nodes: int


def prepare(workload: Workload, threads: int, profile: str | None) -> Ours:
    """Build and load the step of a workload."""
    rule = optimizer(workload)
    weights = model(workload).init(0)
    state = first_state(workload, weights)
    prefix = None if profile is None else os.path.join(profile, workload.name)
    start = time.perf_counter()
    graph = step_graph(workload, {name: array.shape for name, array in state.items()})
    executable = Executable(to_onnx(graph, name=workload.name), threads=threads, spinning=True, profile_prefix=prefix)
    compiled = time.perf_counter() - start
    loop = StepLoop(
        executable, carry={f"next/{name}": name for name in state}, constants={}, state=state, in_place=True
    )
    hyper = {f"hyper/{name}": np.array([value], np.float32) for name, value in {**rule.hyper, "active": 1.0}.items()}
    weight = np.ones(workload.batch, np.float32)
    feeds = cycle([{"batch/x": x, "batch/y": y, "batch/sample_weight": weight, **hyper} for x, y in batches(workload)])
    return Ours(
        step=lambda: loop.step(next(feeds)),
        loss=lambda: loop.read(["metric/loss"])["metric/loss"].item(),
        executable=executable,
        weights=weights,
        compile_ms=compiled * 1e3,
        nodes=len(graph.nodes),
    )
