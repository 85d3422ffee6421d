"""Whole training steps as one plain ONNX file: equal to NumPy, portable operators only, learning, names kept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort  # pyright: ignore[reportMissingTypeStubs]
import pytest

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, NDArray
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.errors import InputError

PORTABLE = set(
    "MatMul Gemm Conv ConvTranspose MaxPool AveragePool Resize Softmax Relu Sigmoid Tanh Exp Log Sqrt "
    "Add Sub Mul Div Min Max Clip Equal Greater Cast "
    "ReduceSum ReduceMax Transpose Reshape Concat Slice Pad Unsqueeze Expand Gather".split()
)
Parameters = Mapping[str, Array]


def dense(p: Parameters, x: Array, *names: str) -> Array:
    for name in names[:-1]:
        x = ops.relu(x @ p[f"{name}.weight"] + p[f"{name}.bias"])
    return x @ p[f"{names[-1]}.weight"] + p[f"{names[-1]}.bias"]


def convolved(p: Parameters, x: Array, name: str, padding: int) -> Array:
    y = ops.conv2d(x, p[f"{name}.weight"], padding=padding) + cnp.reshape(p[f"{name}.bias"], (1, -1, 1, 1))
    return ops.max_pool2d(ops.relu(y), 2)


def flat(x: Array) -> Array:
    return cnp.reshape(x, (x.shape[0], -1))


def lenet(p: Parameters, x: Array) -> Array:
    return dense(p, flat(convolved(p, convolved(p, x, "a", 2), "b", 0)), "c", "d", "e")


def fedavg_cnn(p: Parameters, x: Array) -> Array:
    return dense(p, flat(convolved(p, convolved(p, x, "a", 2), "b", 2)), "c", "d")


def overlapping(p: Parameters, x: Array) -> Array:
    y = ops.max_pool2d(ops.relu(ops.conv2d(x, p["a.weight"], stride=2)), 3, 2, 1)
    return dense(p, flat(ops.avg_pool2d(y, 2, 1)), "c")


def words(p: Parameters, ids: Array) -> Array:
    return dense(p, cnp.mean(ops.embedding(p["table"], ids), axis=1), "a", "b")


def layer(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": (shape[0] if len(shape) == 4 else shape[1],)}


@dataclass(frozen=True)
class Model:
    apply: Callable[[Parameters, Array], Array]
    shapes: dict[str, tuple[int, ...]]
    batch: TensorSpec
    classes: int = 10


MODELS = {
    "mlp": Model(lambda p, x: dense(p, x, "a", "b"), layer("a", 20, 16) | layer("b", 16, 10), TensorSpec((8, 20))),
    "lenet": Model(
        lenet,
        layer("a", 6, 1, 5, 5)
        | layer("b", 16, 6, 5, 5)
        | layer("c", 400, 120)
        | layer("d", 120, 84)
        | layer("e", 84, 10),
        TensorSpec((4, 1, 28, 28)),
    ),
    "fedavg cnn": Model(
        fedavg_cnn,
        layer("a", 32, 1, 5, 5) | layer("b", 64, 32, 5, 5) | layer("c", 3136, 512) | layer("d", 512, 10),
        TensorSpec((2, 1, 28, 28)),
    ),
    "overlapping pools": Model(
        overlapping, {"a.weight": (4, 2, 3, 3)} | layer("c", 16, 10), TensorSpec((4, 2, 13, 13))
    ),
    "embedding classifier": Model(
        words, {"table": (30, 8)} | layer("a", 8, 16) | layer("b", 16, 10), TensorSpec((8, 12), "int32")
    ),
}


def sgd(i: GraphInputs, name: str, g: Array) -> dict[str, Array]:
    return {f"next/{name}": i[name] - i["lr"] * g}


def adam(i: GraphInputs, name: str, g: Array) -> dict[str, Array]:
    m = 0.9 * i[f"{name}.m"] + 0.1 * g
    v = 0.999 * i[f"{name}.v"] + 0.001 * (g * g)
    return {f"next/{name}": i[name] - i["lr"] * m / (cnp.sqrt(v) + 1e-3), f"next/{name}.m": m, f"next/{name}.v": v}


def step_graph(model: Model, update: Callable[[GraphInputs, str, Array], dict[str, Array]]) -> Graph:
    """One step: forward, backward and update; the loss is weighted by sample."""

    def step(i: GraphInputs) -> dict[str, Array]:
        def loss(p: Parameters) -> Array:
            z = model.apply(p, i["x"])
            each = ops.logsumexp(z) - cnp.sum(z * ops.one_hot(i["y"], model.classes), axis=1)
            return cnp.sum(each * i["sample_weight"]) / cnp.maximum(cnp.sum(i["sample_weight"]), 1e-6)

        value, gradients = value_and_grad(loss)({name: i[name] for name in model.shapes})
        outputs = {"loss": value}
        for name in model.shapes:
            outputs |= update(i, name, gradients[name])
        return outputs

    size = model.batch.shape[0]
    specs = {name: TensorSpec(shape) for name, shape in model.shapes.items()}
    if update is adam:
        specs |= {f"{name}.{s}": TensorSpec(shape) for name, shape in model.shapes.items() for s in ("m", "v")}
    batch = {
        "x": model.batch,
        "y": TensorSpec((size,), "int32"),
        "sample_weight": TensorSpec((size,)),
        "lr": TensorSpec((1,)),
    }
    return trace_named(step, specs | batch)


def feeds(model: Model, graph: Graph) -> dict[str, NDArray]:
    rng = np.random.default_rng(0)
    values: dict[str, NDArray] = {}
    for name, value in graph.inputs.items():
        shape = value.type.shape
        scale = np.sqrt(2.0 / max(1, int(np.prod(shape[1:] if len(shape) == 4 else shape[:-1]))))
        values[name] = (
            (rng.normal(size=shape) * scale).astype(np.float32) if name in model.shapes else np.zeros(shape, np.float32)
        )
    size = model.batch.shape[0]
    values["x"] = (
        rng.integers(0, 30, model.batch.shape).astype(np.int32)
        if model.batch.dtype == "int32"
        else rng.random(model.batch.shape).astype(np.float32)
    )
    values["y"] = rng.integers(0, 10, size).astype(np.int32)
    values["sample_weight"] = np.ones(size, np.float32)
    values["lr"] = np.asarray([0.05 if f"{next(iter(model.shapes))}.m" not in graph.inputs else 0.01], np.float32)
    return values


class Session:
    """A file on stock ONNX Runtime, with types."""

    def __init__(self, data: bytes) -> None:
        runtime: Any = ort
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session: Any = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(self, values: Mapping[str, NDArray]) -> dict[str, NDArray]:
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, dict(values)), strict=True))


CASES = [
    pytest.param(model, update, id=f"{name} {update.__name__}")
    for name, model in MODELS.items()
    for update in (sgd, adam)
]


@pytest.mark.parametrize(("model", "update"), CASES)
def test_a_whole_step_is_one_plain_onnx_file_equal_to_numpy(
    model: Model, update: Callable[..., dict[str, Array]]
) -> None:
    graph = step_graph(model, update)
    values = feeds(model, graph)
    expected = interpret(graph, values)
    data = to_onnx(optimise(graph), name="train")
    proto = onnx.load_from_string(data)
    onnx.checker.check_model(proto, full_check=True)  # pyright: ignore[reportUnknownMemberType]
    assert {node.op_type for node in proto.graph.node} <= PORTABLE
    assert {node.domain for node in proto.graph.node} == {""}
    assert [i.name for i in proto.graph.input] == list(graph.inputs)
    assert [o.name for o in proto.graph.output] == list(graph.outputs)
    assert len(data) < 100_000, "weights are inputs, so a step is small"
    run = Session(data)
    results = run.run(values)
    for name, value in expected.items():
        np.testing.assert_allclose(results[name].reshape(value.shape), value, rtol=2e-4, atol=2e-5, err_msg=name)
    first = results["loss"].item()
    for _ in range(15):
        carried = {name.removeprefix("next/"): value for name, value in results.items() if name.startswith("next/")}
        results = run.run(values | carried)
    assert results["loss"].item() < 0.9 * first


def test_zero_weights_give_no_gradient_and_no_nan() -> None:
    model = MODELS["lenet"]
    graph = optimise(step_graph(model, sgd))
    values = feeds(model, graph) | {"sample_weight": np.zeros(4, np.float32)}
    results = Session(to_onnx(graph, name="train")).run(values)
    for name in model.shapes:
        np.testing.assert_array_equal(results[f"next/{name}"], values[name])


def test_the_same_graph_is_written_to_the_same_bytes() -> None:
    one, two = (to_onnx(optimise(step_graph(MODELS["lenet"], sgd)), name="train") for _ in range(2))
    assert one == two


def test_sources_are_noted_on_demand_and_without_folders() -> None:
    graph = step_graph(MODELS["mlp"], sgd)
    assert b"test_steps" not in to_onnx(graph, name="train")
    noted = onnx.load_from_string(to_onnx(graph, name="train", sources=True)).graph.node
    assert {node.doc_string.rpartition(":")[0] for node in noted} == {"test_steps.py"}


def test_scalars_are_carried_as_one_element() -> None:
    graph = trace_named(
        lambda i: {"y": cnp.sum(i["x"]) * i["s"], "copy": i["s"], "number": cnp.asarray(2.0)},
        {"x": TensorSpec((2, 3)), "s": TensorSpec(())},
    )
    run = Session(to_onnx(graph, name="scalars"))
    assert [i.shape for i in run.session.get_inputs()] == [[2, 3], [1]]
    assert [o.shape for o in run.session.get_outputs()] == [[1], [1], [1]]
    results = run.run({"x": np.ones((2, 3), np.float32), "s": np.asarray([3.0], np.float32)})
    assert [result.tolist() for result in results.values()] == [[18.0], [3.0], [2.0]]


def test_one_value_may_be_several_outputs() -> None:
    def fn(i: GraphInputs) -> dict[str, Array]:
        y = cnp.exp(i["x"])
        return {"a": y, "b": y, "c": y + 1.0, "d": i["x"]}

    run = Session(to_onnx(trace_named(fn, {"x": TensorSpec((2,))}), name="copies"))
    a, b, c, d = run.run({"x": np.zeros(2, np.float32)}).values()
    assert (a.tolist(), b.tolist(), c.tolist(), d.tolist()) == ([1, 1], [1, 1], [2, 2], [0, 0])


def test_an_output_named_as_an_input_is_refused() -> None:
    with pytest.raises(InputError, match="'x'.*both"):
        to_onnx(trace_named(lambda i: {"x": i["x"] + 1.0}, {"x": TensorSpec((2,))}), name="clash")


def test_inputs_are_checked_by_the_interpreter() -> None:
    graph = trace_named(lambda i: {"y": i["x"]}, {"x": TensorSpec((2,))})
    x = np.zeros(2, np.float32)
    for bad, message in [
        ({}, "missing"),
        ({"x": x, "z": x}, "no input"),
        ({"x": np.zeros(3, np.float32)}, r"float32\[3\], not float32\[2\]"),
    ]:
        with pytest.raises(InputError, match=message):
            interpret(graph, bad)
