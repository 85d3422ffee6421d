"""Time of one training step of an imported network against the same network written natively.

    python benchmarks/import.py --json [--only lenet_b16 ...] [--rounds 40] [--clock wall|cpu]

The foreign side is an ONNX file in the form in which torch.onnx writes the network (Gemm with the weight turned, NCHW
images, BatchNormalization, GRU with its gates in ONNX's order), loaded by compute.onnx.load; both sides start from the
same weights, and see the same batches. A step is forward, loss, gradients, running statistics and SGD in one graph on
one thread. Each case prints one line (see lines.py): the imported network's step beside the native one's (minimum over
rounds of interleaved blocks of about 20 ms), the largest difference between the losses of the first steps, nodes of
both graphs, load_ms (from bytes to model).
"""

import argparse
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from lines import Budget, Line, Peer, at_most, show
from onnx import NodeProto, TensorProto, helper, numpy_helper
from step_ours import losses
from step_peer import CLOCKS, block

from coterie.compute import nn, onnx, optim
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.ir import Graph, NDArray
from coterie.compute.nn.zoo import gru, lenet, mlp
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named

FIRST_STEPS, BATCHES, BLOCK = 5, 16, 20_000
VOCABULARY, LENGTH = 64, 24


def cnn() -> nn.Sequential:
    """Three convolutions, each with batch normalisation: images [B, 1, 28, 28] → logits [B, 10]."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(1568, 10)),
    )


@dataclass(frozen=True)
class Case:
    """budget: the wanted ratio; None where the line only informs."""

    name: str
    make: Callable[[], nn.Sequential]
    shape: tuple[int, ...]
    batch: int
    budget: Budget | None

    @property
    def tokens(self) -> bool:
        """Whether an example is a sequence of ids, and its label the sequence that follows."""
        return self.shape == (LENGTH,)


CASES = (
    Case("lenet_b16", lenet, (1, 28, 28), 16, at_most(1.1, "ratio")),
    Case("cnn_batchnorm_b32", cnn, (1, 28, 28), 32, at_most(1.1, "ratio")),
    Case("mlp200_b32", lambda: mlp((784, 200, 200, 10)), (784,), 32, None),
    Case("gru_b16", lambda: gru(VOCABULARY, 64), (LENGTH,), 16, None),
)


class Writer:
    """An ONNX graph of the operators that torch.onnx writes."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.held: dict[str, NDArray] = {}

    def op(self, kind: str, *operands: str, outputs: int = 1, **attributes: Any) -> str:
        """One node; the name of its last output."""
        names = [f"{kind}_{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, operands, names, f"/{kind}_{len(self.nodes)}", **attributes))
        return names[0]

    def hold(self, name: str, value: NDArray) -> str:
        """A weight or a constant."""
        self.held[name] = np.ascontiguousarray(value)
        return name

    def layer(self, layer: nn.Module, weights: dict[str, NDArray], x: str) -> str:
        """A layer whose weights are these, by their full names in its own order."""
        names = list(weights)
        match layer:
            case nn.Linear() if self.nodes and self.nodes[-1].op_type == "Transpose":  # behind a recurrent layer
                turned = self.hold(f"{names[0]}.turned", weights[names[0]].T)
                return self.op("Add", self.hold(names[1], weights[names[1]]), self.op("MatMul", x, turned))
            case nn.GRU():
                return self._gru(layer, weights, x)
            case nn.Embedding():
                return self.op("Gather", self.hold(names[0], weights[names[0]]), x)
            case _:
                for name in names:
                    self.hold(name, weights[name])
                kind, attributes = _operator(layer)
                return self.op(kind, x, *names, **attributes)

    def _gru(self, layer: nn.GRU, weights: dict[str, NDArray], x: str) -> str:
        w, r, b_w, b_r = (np.split(value, 3) for value in weights.values())
        order = (1, 0, 2)  # PyTorch has reset, update, new; ONNX has update, reset, new

        def gates(*parts: list[NDArray]) -> NDArray:
            return np.concatenate([part[index] for part in parts for index in order])[None]

        held = [self.hold(f"GRU_{n}", value) for n, value in enumerate((gates(w), gates(r), gates(b_w, b_r)))]
        turned = self.op("Transpose", x, perm=[1, 0, 2])
        y = self.op("GRU", turned, *held, outputs=2, hidden_size=layer.hidden, linear_before_reset=1)
        axes = self.hold("one", np.asarray([1], np.int64))
        return self.op("Transpose", self.op("Squeeze", y, axes), perm=[1, 0, 2])


def _operator(layer: nn.Module) -> tuple[str, dict[str, Any]]:
    match layer:
        case nn.Linear():
            return "Gemm", {"transB": 1}
        case nn.Conv2d(kernel=int(kernel), padding=int(padding)):
            return "Conv", {"kernel_shape": [kernel, kernel], "pads": [padding] * 4}
        case nn.BatchNorm2d():
            return "BatchNormalization", {"epsilon": layer.epsilon, "momentum": 1 - layer.momentum}
        case nn.MaxPool2d(kernel=int(kernel)):
            return "MaxPool", {"kernel_shape": [kernel, kernel], "strides": [kernel, kernel]}
        case nn.ReLU():
            return "Relu", {}
        case nn.Flatten():
            return "Flatten", {"axis": 1}
        case _:
            raise ValueError(f"no operator is written for {layer}")


def exported(case: Case, weights: dict[str, NDArray]) -> bytes:
    """The network of a case as a file, opset 17, with an open first axis."""
    writer, last = Writer(), "x"
    for index, layer in enumerate(case.make().layers):
        own = {f"{index}.{name}": weights[f"{index}.{name}"] for name in layer.specs()}
        last = writer.layer(layer, own, last)
    kind = TensorProto.INT64 if case.tokens else TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("x", kind, ["batch", *case.shape])]
    outputs = [helper.make_empty_tensor_value_info(last)]
    tensors = [numpy_helper.from_array(value, name) for name, value in writer.held.items()]
    graph = helper.make_graph(writer.nodes, "main_graph", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def batches(case: Case) -> list[dict[str, NDArray]]:
    """The same on both sides."""
    rng = np.random.default_rng(0)

    def one() -> dict[str, NDArray]:
        if case.tokens:
            text = rng.integers(0, VOCABULARY, (case.batch, LENGTH + 1)).astype(np.int32)
            return {"x": np.ascontiguousarray(text[:, :-1]), "y": np.ascontiguousarray(text[:, 1:])}
        x = rng.normal(size=(case.batch, *case.shape)).astype(np.float32)
        return {"x": x, "y": rng.integers(0, 10, case.batch).astype(np.int32)}

    return [one() for _ in range(BATCHES)]


def step_graph(model: nn.Module, batch: dict[str, NDArray]) -> Graph:
    """A whole step: weights and running statistics in, and their next values out."""
    rule, specs = optim.packed(optim.sgd(0.05)), model.specs()
    trained = [name for name, spec in specs.items() if spec.role == "shared"]

    def step(inputs: GraphInputs) -> dict[str, Array]:
        held = {name: inputs[name] for name in specs}

        def loss(params: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
            logits, after = nn.forward(model, {**held, **params}, inputs["x"], nn.train())
            return xp.mean(losses(logits, inputs["y"])), after

        (value, after), gradients = value_and_grad(loss, has_aux=True)({name: held[name] for name in trained})
        rate = {"lr": xp.full((1,), 0.05)}
        moved, _ = rule.update(gradients, {}, {name: held[name] for name in trained}, rate, xp.ones((1,)))
        return {f"next/{name}": array for name, array in {**after, **moved}.items()} | {"loss": value}

    inputs = {name: TensorSpec(spec.shape) for name, spec in specs.items()}
    inputs |= {name: TensorSpec(array.shape, array.dtype.name) for name, array in batch.items()}
    return optimise(trace_named(step, inputs))


@dataclass(frozen=True)
class Side:
    """One side, prepared."""

    step: Callable[[], None]
    loss: Callable[[], float]
    nodes: int


def prepare(model: nn.Module, weights: dict[str, NDArray], case: Case) -> Side:
    """Build and load the step of one side."""
    data = batches(case)
    graph = step_graph(model, data[0])
    executable = Executable(to_onnx(graph, name=case.name), spinning=True)
    loop = StepLoop(
        executable, carry={f"next/{name}": name for name in weights}, constants={}, state=weights, in_place=True
    )
    feeds = cycle(data)
    return Side(
        step=lambda: loop.step(next(feeds)),
        loss=lambda: loop.read(["loss"])["loss"].item(),
        nodes=len(graph.nodes),
    )


def measure(case: Case, rounds: int, clock: str) -> Line:
    """One line of the result."""
    native = case.make()
    weights = native.init(0)
    data = exported(case, weights)
    start = time.perf_counter()
    model = onnx.load(data)
    load_ms = (time.perf_counter() - start) * 1e3
    foreign = nn.Imported(model)
    sides = [prepare(foreign, foreign.init(0), case), prepare(native, weights, case)]
    difference = 0.0
    for _ in range(FIRST_STEPS):
        for side in sides:
            side.step()
        difference = max(difference, abs(sides[0].loss() - sides[1].loss()))
    counts = [max(1, math.ceil(BLOCK / block(side.step, 3, clock))) for side in sides]
    best = [math.inf, math.inf]
    for _ in range(rounds):
        best = [min(least, block(side.step, n, clock)) for least, side, n in zip(best, sides, counts, strict=True)]
    details = {
        "clock": clock,
        "loss_difference": difference,
        "nodes": [side.nodes for side in sides],
        "load_ms": round(load_ms, 1),
    }
    return Line(case.name, best[0], "us", Peer("native", best[1]), case.budget, details)


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON line a case")
    parser.add_argument("--only", nargs="*", choices=[case.name for case in CASES], default=None)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for a machine that is busy otherwise")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for case in CASES:
        if options.only is None or case.name in options.only:
            show(measure(case, options.rounds, options.clock), as_json=options.json)


if __name__ == "__main__":
    main()
