"""Clipping makes no gradient for each example where norms from factors cost less, and adds little to a step."""

from collections.abc import Mapping

import numpy as np
import pytest

from coterie.compute import nn
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.clipping.transform import clipped_grad
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, NDArray
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from tests.compute.clipping.models import (
    BY_NAME,
    MODELS,
    Model,
    assert_agree,
    clip_of,
    floats,
    ids,
    length,
    loop,
    of_module,
)

each = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)


def step_graph(model: Model) -> Graph:
    """Parameters, batch, weights and the norm are inputs; a step of SGD the output."""
    params = model.weights()
    specs = {f"p/{name}": TensorSpec(value.shape) for name, value in params.items()}
    specs |= {f"b/{i}": TensorSpec(array.shape, array.dtype.name) for i, array in enumerate(model.batch)}
    specs |= {"w": TensorSpec((model.size,)), "clip": TensorSpec((1,)), "lr": TensorSpec((1,))}

    def step(inputs: GraphInputs) -> dict[str, Array]:
        given = {name: inputs[f"p/{name}"] for name in params}
        batch = [inputs[f"b/{i}"] for i in range(len(model.batch))]
        clipped = clipped_grad(model.fn, inputs["clip"])(given, *batch, sample_weight=inputs["w"])
        moved = {f"next/{name}": given[name] - inputs["lr"] * g for name, g in clipped.gradient.items()}
        return moved | {"norms": clipped.norms, "losses": clipped.losses, "clipped": clipped.clipped}

    return optimise(trace_named(step, specs))


def feeds(model: Model) -> dict[str, NDArray]:
    made = {f"p/{name}": value.numpy() for name, value in model.weights().items()}
    made |= {f"b/{i}": array for i, array in enumerate(model.batch)}
    weight = np.ones(model.size, np.float32)
    weight[0] = 0
    return made | {"w": weight, "clip": np.array([0.3], np.float32), "lr": np.array([0.1], np.float32)}


@each
def test_the_runtime_agrees_with_the_interpreter_and_with_the_loop(model: Model) -> None:
    graph, given = step_graph(model), feeds(model)
    reference = interpret(graph, given)
    target = "cpu" if model.name == "while loop" else "portable"
    ran = Executable(to_onnx(graph, name="step", target=target)).run(given)
    total, norms = loop(model, 0.3, given["w"])
    for name, value in reference.items():
        np.testing.assert_allclose(ran[name].reshape(value.shape), value, rtol=1e-3, atol=2e-6, err_msg=name)
    np.testing.assert_allclose(reference["norms"], norms, rtol=2e-4, atol=1e-7)
    for name, value in total.items():
        np.testing.assert_allclose(reference[f"next/{name}"], given[f"p/{name}"] - 0.1 * value, rtol=1e-4, atol=2e-6)


def largest(graph: Graph) -> int:
    return max(value.type.size for node in graph.nodes for value in node.outputs)


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.zoo.mlp([50, 40, 30]), floats(16, 50)),
        (nn.Sequential(nn.Linear(60, 50), nn.Tanh(), nn.Linear(50, 60)), floats(16, 3, 60)),
        (nn.Embedding(300, 40), ids(300, 16, 4)),
        (nn.MultiHeadAttention(64, 2), floats(16, 2, 64)),
    ],
    ids=["mlp", "sequences", "embedding", "attention"],
)
def test_ghost_norms_leave_no_gradient_of_single_examples(module: nn.Module, x: NDArray) -> None:
    model = of_module("", module, x)
    weight = max(value.size for value in model.weights().values())
    made = [value.type.size for node in step_graph(model).nodes for value in node.outputs]
    assert max(made) < 16 * weight / 2


def test_a_deep_convolution_is_clipped_without_a_gradient_for_each_example() -> None:
    model = of_module("", nn.Conv2d(48, 64, 3), floats(8, 48, 4, 4))
    graph = step_graph(model)
    assert largest(graph) < 8 * 64 * 48 * 9 / 2
    assert_agree(clip_of(model, 0.3).gradient, loop(model, 0.3, np.ones(8, np.float32))[0])


@pytest.mark.parametrize(
    ("module", "x"),
    [(nn.Linear(60, 60), floats(8, 32, 60)), (nn.Conv2d(12, 40, 3), floats(8, 12, 7, 7))],
    ids=["sequences", "convolution"],
)
def test_gradients_that_would_fill_the_memory_are_not_kept(
    module: nn.Module, x: NDArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = of_module("", module, x)
    kept = 8 * max(value.size for value in model.weights().values())
    assert largest(step_graph(model)) >= kept  # inner products cost more, so these small ones are kept
    monkeypatch.setattr("coterie.compute.clipping.norms.KEPT", kept - 1)
    assert largest(step_graph(model)) < kept
    assert_agree(clip_of(model, 0.3).gradient, loop(model, 0.3, np.ones(8, np.float32))[0])


@pytest.mark.parametrize("name", ["last rows", "picked"])
def test_norms_of_an_embedding_come_from_which_ids_are_equal(name: str) -> None:
    nodes = step_graph(BY_NAME[name]).nodes
    assert [node.output.type.shape for node in nodes if node.primitive == "equal"].count((6, 4, 4)) == 1
    products = [node.output.type.shape for node in nodes if node.primitive in ("matmul", "gemm")]
    assert products.count((6, 4, 4)) == 1  # of the cotangents; none of one-hot rows


def test_squares_of_float16_do_not_overflow() -> None:
    def fn(params: Mapping[str, Array], x: Array) -> Array:
        return xp.sum(x @ params["w"], axis=1)

    params = {"w": Array(np.ones((3, 2), np.float16))}
    clipped = clipped_grad(fn, 1.0)(params, Array(np.full((2, 3), 300.0, np.float16)))
    assert clipped.gradient["w"].dtype == np.float16
    assert abs(length(clipped.gradient) - 2.0) < 1e-2
    np.testing.assert_allclose(clipped.norms.numpy(), 300 * np.sqrt(6), rtol=1e-3)


def test_the_clipped_sum_melts_into_the_update_of_the_weights() -> None:
    graph = step_graph(of_module("", nn.zoo.mlp([50, 40, 30]), floats(16, 50), ids(30, 16)))
    for layer, shape in (("0", (40, 50)), ("2", (30, 40))):
        update = graph.producers()[graph.outputs[f"next/{layer}.weight"]]
        assert update.primitive == "gemm"
        assert update.inputs[2] is graph.inputs[f"p/{layer}.weight"]
        made = [node for node in graph.nodes if node.output.type.shape in (shape, shape[::-1])]
        assert [node.primitive for node in made] == ["gemm"]


def test_a_step_costs_few_nodes_more_than_the_plain_one() -> None:
    model = of_module("", nn.zoo.mlp([50, 40, 30]), floats(16, 50), ids(30, 16))
    specs = {f"p/{name}": TensorSpec(value.shape) for name, value in model.weights().items()}
    specs |= {"x": TensorSpec((16, 50)), "y": TensorSpec((16,), "int32"), "w": TensorSpec((16,))}

    def plain(inputs: GraphInputs) -> dict[str, Array]:
        given = {name.removeprefix("p/"): inputs[name] for name in specs if name.startswith("p/")}

        def loss(params: dict[str, Array]) -> Array:
            return xp.sum(model.fn(params, inputs["x"], inputs["y"]) * inputs["w"])

        gradient = grad(loss)(given)
        return {f"next/{name}": given[name] - 0.1 * g for name, g in gradient.items()}

    def products(graph: Graph) -> int:
        return sum(node.primitive in ("matmul", "gemm") and max(node.output.type.shape) > 1 for node in graph.nodes)

    biases = 2  # the sum of a bias's gradients is a product with the scales
    assert products(step_graph(model)) == products(optimise(trace_named(plain, specs))) + biases
