"""What a model costs on this machine: time of an inference and of a training step, size, memory."""

import time
from collections.abc import Callable, Mapping

import numpy as np

from coterie.compute.array import Array
from coterie.compute.data.batches import WEIGHT
from coterie.compute.ir import Graph, NDArray
from coterie.compute.memory.report import memory_report
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.mode import EVAL
from coterie.compute.nn.module import Module, Role
from coterie.compute.nn.zoo.cost import Cost
from coterie.compute.nn.zoo.table import Input, Inputs
from coterie.compute.onnx.weights import embed_weights
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.optim.optimizer import check_whole
from coterie.compute.optim.packing import packed
from coterie.compute.optim.sgd import sgd
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.runtime.yardstick import least_seconds
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.compute.training.graphs import NEXT, Recipe
from coterie.errors import ShapeError

STEP_BATCH = 32
_ROUNDS = 15
_BLOCK_S = 2e-3
_LABEL = "label"
_ONLY = "x"
_OPTIMIZER = packed(sgd(0.01))


def measure(
    model: Module,
    inputs: Inputs,
    *,
    threads: int = 1,
    rounds: int = _ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Cost:
    """Run a classifier on ONNX Runtime's CPU provider, and tell what it costs here.

    model: gives logits [B, K], or [B, T, K] for each position. inputs: what it takes (``zoo.Input``), one or several by
    name. Times are the least of ``rounds`` blocks of at least 2 ms, so that other load on the machine adds little;
    clock: seconds, ``time.process_time`` for a machine that is busy otherwise.

    Guarantees: size_bytes and memory_bytes depend on the model alone, not on the machine or its load. Raises InputError
    for a model that does not take these inputs, ShapeError for one that gives no logits.
    """
    check_whole("measure", threads=threads, rounds=rounds)
    file, feeds = inference_file(model, inputs)
    served = Executable(file, threads=threads)
    latency = least_seconds(lambda: served.run(feeds), rounds=rounds, clock=clock, block_s=_BLOCK_S)
    graph = training_graph(model, inputs)
    step = _stepping(graph, model, inputs, threads)
    return Cost(
        latency_us=latency * 1e6,
        step_us=least_seconds(step, rounds=rounds, clock=clock, block_s=_BLOCK_S) * 1e6,
        size_bytes=len(file),
        memory_bytes=memory_report(graph).peak,
    )


def inference_file(model: Module, inputs: Inputs, *, batch: int = 1, seed: int = 0) -> tuple[bytes, dict[str, NDArray]]:
    """The inference graph as an ONNX file with first weights inside, and feeds that it can digest."""
    graph = optimise(_inference_graph(model, inputs, batch))
    held = {f"params/{name}": value for name, value in model.init(seed).items() if f"params/{name}" in graph.inputs}
    feeds = {name: one.example(batch, name) for name, one in _named(inputs).items()}
    return embed_weights(to_onnx(graph, name="infer"), held), feeds


def _inference_graph(model: Module, inputs: Inputs, batch: int) -> Graph:
    """Weights ``params/<name>`` and inputs to ``output``."""
    named, weights = _named(inputs), model.specs()

    def infer(given: GraphInputs) -> dict[str, Array]:
        features = {name: given[name] for name in named}
        x = features[_ONLY] if isinstance(inputs, Input) else features
        # Several features reach a model as a mapping, as they do in a plan.
        return {"output": model({name: given[f"params/{name}"] for name in weights}, x, EVAL)}  # pyright: ignore[reportArgumentType]

    specs = {f"params/{name}": TensorSpec(spec.shape) for name, spec in weights.items()}
    specs |= {name: TensorSpec((batch, *one.shape), one.dtype) for name, one in named.items()}
    return trace_named(infer, specs)


def training_graph(model: Module, inputs: Inputs) -> Graph:
    """A step of SGD on a batch of 32 examples: as in a ``Trainer``, and with its names."""
    weights, roles, rows = model.init(0), _roles(model), _rows(model, inputs)

    def of(role: Role) -> dict[str, TensorSpec]:
        return {name: TensorSpec(value.shape) for name, value in weights.items() if roles[name] == role}

    return Recipe(
        model=model,
        loss=softmax_cross_entropy,
        metrics={},
        optimizer=_OPTIMIZER,
        precision=None,
        shared=of("shared"),
        frozen=of("frozen"),
        buffers=of("buffer"),
        state={name: TensorSpec(value.shape) for name, value in _state(weights, roles).items()},
        batch={name: TensorSpec(value.shape, value.dtype.name) for name, value in rows.items()},
        label=_LABEL,
    ).train()


def _stepping(graph: Graph, model: Module, inputs: Inputs, threads: int) -> Callable[[], None]:
    """What runs the step once, from bound state to bound state."""
    weights, roles = model.init(0), _roles(model)
    first = {f"{roles[name]}/{name}": value for name, value in weights.items()}
    first |= {f"optimizer/{name}": value for name, value in _state(weights, roles).items()}
    carry = {name: name.removeprefix(NEXT) for name in graph.outputs if name.startswith(NEXT)}
    held = {name: value for name, value in first.items() if name in graph.inputs}
    loop = StepLoop(
        Executable(to_onnx(graph, name="step"), threads=threads),
        carry=carry,
        constants={name: value for name, value in held.items() if name not in carry.values()},
        state={name: held[name] for name in carry.values()},
    )
    numbers = {**_OPTIMIZER.hyper, "active": 1.0}
    feeds = {f"batch/{name}": value for name, value in _rows(model, inputs).items()}
    feeds |= {f"hyper/{name}": np.array([value], np.float32) for name, value in numbers.items()}
    # Whatever else the step asks for is numbers in [0, 1), for dropout.
    fed = {tensor.name: feeds.get(tensor.name, np.full(tensor.shape, 0.5, np.float32)) for tensor in loop.feeds}
    return lambda: loop.step(fed)


def _roles(model: Module) -> dict[str, Role]:
    return {name: spec.role for name, spec in model.specs().items()}


def _state(weights: Mapping[str, NDArray], roles: Mapping[str, Role]) -> dict[str, NDArray]:
    """The optimizer's first state."""
    trained = {name: Array(value) for name, value in weights.items() if roles[name] == "shared"}
    return {name: value.numpy() for name, value in _OPTIMIZER.init(trained).items()}


def _rows(model: Module, inputs: Inputs) -> dict[str, NDArray]:
    """A batch with labels and weights."""
    rows = {name: one.example(STEP_BATCH, name) for name, one in _named(inputs).items()}
    labels = np.zeros(_labels(model, inputs), np.int32)
    return {**rows, _LABEL: labels, WEIGHT: np.ones(STEP_BATCH, np.float32)}


def _labels(model: Module, inputs: Inputs) -> tuple[int, ...]:
    """The shape of the labels of a batch."""
    shape = _inference_graph(model, inputs, STEP_BATCH).outputs["output"].type.shape
    if len(shape) < 2:
        raise ShapeError(
            f"measure: {type(model).__name__} gives {list(shape)}, not logits [B, classes].",
            hint="Measure a classifier; a regression has the cost of one with as many outputs.",
        )
    return shape[:-1]


def _named(inputs: Inputs) -> Mapping[str, Input]:
    return {_ONLY: inputs} if isinstance(inputs, Input) else inputs
