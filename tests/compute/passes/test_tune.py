"""Tuning: each target gets its own forms, and all of them compute the same."""

from collections.abc import Callable, Mapping
from typing import get_args

import numpy as np
import onnx
import pytest

from coterie.compute import nn, ops, optim
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.control.functions import scan
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, NDArray
from coterie.compute.nn.module import Module
from coterie.compute.nn.zoo import char_gru, char_transformer, fedavg_cnn, lenet, mlp
from coterie.compute.onnx.writer import Target, to_onnx
from coterie.compute.passes import optimise
from coterie.compute.passes.tune import TUNING, before_gradients, tune
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from tests.compute.passes.steps import whole_step

TARGETS: tuple[Target, ...] = get_args(Target)
IMAGES, IDS = TensorSpec((4, 1, 28, 28)), TensorSpec((4, 12), "int32")
STEPS: Mapping[str, tuple[Module, TensorSpec, int]] = {
    "mlp": (mlp((300, 200, 150, 10)), TensorSpec((16, 300)), 10),
    "mlp of many rows": (mlp((40, 30, 20, 10)), TensorSpec((200, 40)), 10),
    "lenet": (lenet(), IMAGES, 10),
    "cnn": (fedavg_cnn(), IMAGES, 10),
    "gru": (char_gru(20, 8, 16), IDS, 20),
    "transformer": (char_transformer(20, 16, 2, 1, 12), IDS, 20),
}


def step(name: str) -> Graph:
    model, x, classes = STEPS[name]
    return whole_step(model, x, x.shape[:1], classes, optim.sgd(0.1, momentum=0.9))


def numbers(graph: Graph, seed: int = 0) -> dict[str, NDArray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(0, 10, value.type.shape).astype(value.type.dtype)
        if value.type.dtype == "int32"
        else rng.normal(0, 0.3, size=value.type.shape).astype(value.type.dtype)
        for name, value in graph.inputs.items()
    }


def check_same(before: Graph, after: Graph) -> None:
    given = numbers(before)
    expected = interpret(before, given)
    for name, value in interpret(after, given).items():
        size = max(1.0, float(np.abs(expected[name]).max()))
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5 * size, err_msg=name)


@pytest.mark.parametrize("name", STEPS)
def test_tuned_steps_compute_the_same_on_every_target_and_again_changes_nothing(name: str) -> None:
    graph = step(name)
    done: list[Graph] = []
    for target in TARGETS:
        after = tune(graph, target)
        assert tune(after, target) is after
        assert list(after.inputs) == list(graph.inputs) and list(after.outputs) == list(graph.outputs)
        if target not in TUNING:
            assert after is graph
        elif all(len(after.nodes) != len(other.nodes) for other in done):
            check_same(graph, after)
            done.append(after)


def linear(rows: int, inputs: int, outputs: int, *, bias: bool = True) -> Graph:
    layer = nn.Linear(inputs, outputs, bias)
    specs = {name: TensorSpec(spec.shape) for name, spec in layer.specs().items()} | {"x": TensorSpec((rows, inputs))}
    return optimise(trace_named(lambda i: {"y": cnp.tanh(layer(i, i["x"]))}, specs))


def left_operand(data: bytes, operator: str = "Gemm") -> str:
    (node,) = [node for node in onnx.load_from_string(data).graph.node if node.op_type == operator]
    return node.input[0]


def test_a_layer_says_only_what_it_computes() -> None:
    layer = nn.Linear(300, 200)
    specs = {"weight": TensorSpec((200, 300)), "bias": TensorSpec((200,)), "x": TensorSpec((8, 300))}
    graph = trace_named(lambda i: {"y": layer(i, i["x"])}, specs)
    assert [node.primitive for node in graph.nodes] == ["transpose", "matmul", "add"]


@pytest.mark.capability("E10")
@pytest.mark.parametrize("target", TARGETS)
def test_e10_the_larger_weight_stands_left_where_that_was_measured_to_pay_and_nowhere_else(target: Target) -> None:
    few, many = (linear(rows, 300, 200) for rows in (16, 1000))
    turned = target in ("portable", "cpu", "wasm")
    if target not in ("coreml", "npu"):  # of which one takes a weight that is an input only as the operand of a MatMul
        assert left_operand(to_onnx(few, name="few", target=target)) == ("weight" if turned else "x")
        assert left_operand(to_onnx(many, name="many", target=target)) == "x"
    assert (tune(few, target) is few) == (not turned)
    assert tune(many, target) is many


def test_gradients_lie_as_their_values_do() -> None:
    graph = tune(step("mlp"), "portable")
    assert not [node for node in graph.nodes if node.primitive == "transpose"]
    (hidden, *_) = [node for node in graph.nodes if node.primitive == "relu"]
    masks = [node for node in graph.nodes if node.primitive == "greater"]
    assert hidden.output.type.shape == (200, 16)
    assert {mask.output.type.shape for mask in masks} == {(200, 16), (150, 16)}


def test_state_is_never_turned() -> None:
    # The weight's gradient is cheaper the other way round; the weight that it moves is an input and a result.
    def moved(i: GraphInputs) -> dict[str, Array]:
        return {"next": i["weight"] - cnp.matrix_transpose(i["g"]) @ i["x"]}

    graph = optimise(
        trace_named(moved, {"weight": TensorSpec((16, 900)), "g": TensorSpec((2000, 16)), "x": TensorSpec((2000, 900))})
    )
    assert tune(graph, "portable") is graph


READERS: Mapping[str, Callable[[Array, GraphInputs], Array]] = {
    "a row beside it": lambda z, i: cnp.sum(cnp.exp(z * i["row"]) + i["row"], axis=0),
    "a column beside it": lambda z, i: (
        cnp.sum(z * i["column"], axis=1, keepdims=True) + cnp.max(z, axis=1, keepdims=True)
    ),
    "a matrix beside it": lambda z, i: cnp.sum(z * i["matrix"] - z),
    "its softmax": lambda z, i: ops.softmax(z),
    "its transposition": lambda z, i: cnp.tanh(cnp.matrix_transpose(z)) @ i["matrix"],
    "other columns of it": lambda z, i: cnp.concat([z[:, :50], cnp.exp(z)], axis=1),
    "itself, twice": lambda z, i: cnp.matrix_transpose(z) @ z,
    "a choice by its sign": lambda z, i: cnp.where(z > 0, z, i["row"]) @ i["next"],
    "a constant beside it": lambda z, i: cnp.sum(z * np.arange(3200, dtype=np.float32).reshape(8, 400), axis=(0, 1)),
}


@pytest.mark.parametrize("name", READERS)
def test_what_reads_a_turned_matrix_reads_the_same(name: str) -> None:
    specs = {
        "x": TensorSpec((8, 500)),
        "weight": TensorSpec((400, 500)),
        "row": TensorSpec((400,)),
        "column": TensorSpec((8, 1)),
        "matrix": TensorSpec((8, 400)),
        "next": TensorSpec((400, 300)),
    }
    graph = optimise(
        trace_named(lambda i: {"y": READERS[name](i["x"] @ cnp.matrix_transpose(i["weight"]) + i["row"], i)}, specs)
    )
    after = tune(graph, "portable")
    assert [node.inputs[0] for node in after.nodes if node.primitive == "gemm"][0] is after.inputs["weight"]
    assert tune(after, "portable") is after
    check_same(graph, after)


def test_products_inside_of_loops_are_tuned_too() -> None:
    def repeated(i: GraphInputs) -> dict[str, Array]:
        def body(x: Array, _: None) -> tuple[Array, Array]:
            hidden = cnp.tanh(x @ cnp.matrix_transpose(i["weight"]))
            return hidden @ i["weight"] * 0.1, cnp.sum(hidden)

        carry, sums = scan(body, i["x"], None, length=3)
        return {"x": carry, "sums": sums}

    graph = optimise(trace_named(repeated, {"x": TensorSpec((8, 400)), "weight": TensorSpec((500, 400))}))
    after = tune(graph, "cpu")
    assert after is not graph and tune(after, "cpu") is after
    check_same(graph, after)


def test_numbers_beside_columns_get_as_many_axes_for_the_cpu_alone() -> None:
    graph = optimise(trace_named(lambda i: {"y": cnp.exp(i["x"]) * 3.0}, {"x": TensorSpec((5, 7, 1))}))

    def shape(of: Graph) -> tuple[int, ...]:
        (node,) = [node for node in of.nodes if node.primitive == "multiply"]
        return min(value.type.shape for value in node.inputs)

    assert shape(graph) == () and shape(tune(graph, "cuda")) == ()
    assert shape(tune(graph, "portable")) == (1, 1, 1)
    check_same(graph, tune(graph, "portable"))


@pytest.mark.parametrize("target", TARGETS)
def test_pooling_goes_before_relu_for_the_gradients_of_a_step_for_cpus_alone(target: Target) -> None:
    weight = np.random.default_rng(0).normal(size=(2, 3, 3, 3)).astype(np.float32)

    def gradient(before: Callable[[Graph], Graph] | None) -> Graph:
        def loss(x: Array) -> Array:
            return cnp.sum(ops.max_pool2d(ops.relu(x), 2) * weight)

        return optimise(
            trace_named(
                lambda i: {"g": value_and_grad(loss, before=before)(i["x"])[1]}, {"x": TensorSpec((2, 3, 6, 6))}
            )
        )

    plain, tuned = gradient(None), gradient(before_gradients(target))
    (mask,) = [node for node in tuned.nodes if node.primitive == "greater"]
    assert mask.output.type.shape == ((2, 3, 3, 3) if target in TUNING else (2, 3, 6, 6))
    given = numbers(plain)
    np.testing.assert_array_equal(interpret(tuned, given)["g"], interpret(plain, given)["g"])
