"""A legalised graph means what the graph meant, holds only operators of the provider's row, and what cannot be written
is refused with the user's line.
"""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import nn, ops
from coterie.compute import numpy as cnp
from coterie.compute.array import Array, bind
from coterie.compute.autodiff import grad, value_and_grad
from coterie.compute.clipping.transform import clipped_grad
from coterie.compute.control.functions import scan, while_loop
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, NDArray
from coterie.compute.onnx.providers import PROVIDERS
from coterie.compute.onnx.writer import Target, to_onnx
from coterie.compute.passes import optimise
from coterie.compute.passes.legalise import legalise
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.reference import distance, evaluate
from coterie.compute.trace import GraphInputs, TensorSpec, trace, trace_named
from coterie.compute.verify import verify
from coterie.errors import GraphRefused, InputError, TraceError
from tests.compute.core.cases import CASES, apply, single
from tests.compute.core.test_passes import feeds, graphs
from tests.compute.passes.steps import adam_step

OTHERS = tuple(name for name in PROVIDERS if name not in ("cpu", "wasm", "cuda"))
# What a step of any model is made of: never refused. The others have operators of their own, and where a provider lacks
# one there may be no other way to write it.
STEPS = set(
    "constant astype stop_gradient barrier negative add subtract multiply divide maximum minimum exp log sqrt tanh "
    "sigmoid relu softplus softmax equal greater where reshape transpose broadcast_to slice pad concat gather sum max "
    "matmul gemm conv conv_input_gradient conv_weight_gradient max_pool average_pool enlarge scatter_add".split()
)
# A comparison, or a choice between masks, whose result leaves the graph as a bool: there is no number to write instead.
BOOLS = {"coreml": {"equal", "greater", "where"}}


def written(graph: Graph, provider: str) -> bytes:
    return to_onnx(graph, name="legal", target=cast(Target, provider))


def operators(data: bytes) -> set[str]:
    return {str(node.op_type) for node in onnx.load_from_string(data).graph.node}


@pytest.mark.parametrize("provider", OTHERS)
def test_every_primitive_is_written_in_operators_of_the_provider_or_refused(provider: str) -> None:
    refused: set[str] = set()
    for name, cases in CASES.items():
        for case in map(single, cases):
            graph = trace(apply(name, case), *case.operands).graph
            given = {name: np.reshape(x, x.shape or (1,)) for name, x in zip(graph.inputs, case.operands, strict=True)}
            try:
                data = written(graph, provider)
            except GraphRefused as error:
                assert f"provider {provider}" in str(error)
                refused.add(name)
                continue
            assert operators(data) <= PROVIDERS[provider].operators
            found = Executable(data).run(given)
            for output, expected in evaluate(graph, given).items():
                assert distance(found[output], expected) < 1e-5, (name, case.attributes)
    assert refused & STEPS == BOOLS.get(provider, set())


@pytest.mark.parametrize("provider", OTHERS)
@settings(max_examples=12)
@given(graph=graphs())
def test_legalisation_keeps_the_meaning_and_is_idempotent(provider: str, graph: Graph) -> None:
    graph = optimise(graph)
    after = legalise(graph, provider)
    assert verify(after) is after
    assert legalise(after, provider) is after
    assert list(after.inputs) == list(graph.inputs)
    assert operators(written(graph, provider)) <= PROVIDERS[provider].operators
    before, now = interpret(graph, feeds()), interpret(after, feeds())
    for output, value in before.items():
        np.testing.assert_allclose(now[output], value, rtol=1e-9, atol=1e-9)


def step(i: GraphInputs) -> dict[str, Array]:
    """A convolution by channel, overlapping pools, an embedding and a cross entropy, with their gradients."""

    def loss(p: dict[str, Array]) -> Array:
        image = ops.relu(ops.conv2d(i["x"], p["kernel"], p["bias"], groups=2, padding=1, dilation=2))
        image = ops.max_pool2d(image, 3, 2, 1)
        flat = cnp.concat([cnp.reshape(image, (4, -1)), ops.embedding(p["table"], i["ids"])], axis=1)
        z = flat @ p["w"]
        each = ops.logsumexp(z) - cnp.sum(z * ops.one_hot(i["y"], 3), axis=1)
        return cnp.mean(each + ops.softplus(cnp.sum(z, axis=1)))

    value, gradients = value_and_grad(loss)({name: i[name] for name in ("kernel", "bias", "table", "w")})
    return {"loss": value} | {f"next/{name}": i[name] - 0.1 * g for name, g in gradients.items()}


STEP = {
    "x": TensorSpec((4, 4, 7, 6)),
    "ids": TensorSpec((4,), "int32"),
    "y": TensorSpec((4,), "int32"),
    "kernel": TensorSpec((2, 2, 3, 3)),
    "bias": TensorSpec((2,)),
    "table": TensorSpec((6, 5)),
    "w": TensorSpec((2 * 3 * 2 + 5, 3)),
}


def step_feeds() -> dict[str, NDArray]:
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=spec.shape).astype(np.float32)
        if spec.dtype == "float32"
        else rng.integers(0, 3, spec.shape).astype(np.int32)
        for name, spec in STEP.items()
    }


@pytest.mark.parametrize("provider", OTHERS)
def test_a_training_step_is_legal_for_every_provider(provider: str) -> None:
    graph = optimise(trace_named(step, STEP))
    given = step_feeds()
    data = written(graph, provider)
    assert operators(data) <= PROVIDERS[provider].operators
    found = Executable(data).run(given)
    for name, expected in evaluate(graph, given).items():
        assert distance(found[name], expected) < 1e-4


def private_step() -> Graph:
    """The gradient of a small convolutional network with clipped examples."""
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    specs = {name: TensorSpec(array.shape) for name, array in net.init(0).items()}

    def step(i: GraphInputs) -> dict[str, Array]:
        def losses(p: dict[str, Array], x: Array, y: Array) -> Array:
            z = net(p, x, nn.train())
            return ops.logsumexp(z) - cnp.sum(z * ops.one_hot(y, 3), axis=1)

        params = {name: i[name] for name in specs}
        found = clipped_grad(losses, 1.0)(params, i["x"], i["y"])
        return {f"next/{name}": i[name] - 0.1 * found.gradient[name] for name in specs}

    return optimise(trace_named(step, specs | {"x": TensorSpec((5, 2, 6, 6)), "y": TensorSpec((5,), "int32")}))


WHOLE: dict[str, Callable[[], Graph]] = {
    "private": private_step,
    "mlp": lambda: adam_step(nn.zoo.mlp((12, 8, 4)), TensorSpec((6, 12)), (6,), 4),
    "lenet": lambda: adam_step(nn.zoo.lenet(), TensorSpec((2, 1, 28, 28)), (2,), 10),
    "transformer": lambda: adam_step(nn.zoo.transformer(11, 8, 2, 1, 5), TensorSpec((3, 5), "int32"), (3, 5), 11),
    "gru": lambda: adam_step(nn.zoo.gru(11, 8), TensorSpec((3, 5), "int32"), (3, 5), 11),
}


@cache
def whole(model: str) -> Graph:
    return WHOLE[model]()


@pytest.mark.parametrize("model", WHOLE)
@pytest.mark.parametrize("provider", OTHERS)
def test_steps_of_whole_models_are_legal_for_every_provider(model: str, provider: str) -> None:
    graph = whole(model)
    rng = np.random.default_rng(0)
    given: dict[str, NDArray] = {}
    for name, value in graph.inputs.items():
        shape = value.type.shape or (1,)
        numbers = rng.uniform(0.01, 0.2, shape) if value.type.is_float else rng.integers(0, 4, shape)
        given[name] = numbers.astype(value.type.dtype)
    data = written(graph, provider)
    assert operators(data) <= PROVIDERS[provider].operators
    found = Executable(data).run(given)
    for name, expected in Executable(to_onnx(graph, name="step")).run(given).items():
        assert distance(found[name], expected) < 1e-4


def test_a_mask_is_a_number_from_the_start_where_comparisons_fail_beside_products() -> None:
    graph = optimise(trace(grad(lambda x: cnp.sum(ops.relu(x) * 2.0)), TensorSpec((3, 4))).graph)
    assert "greater" in [node.primitive for node in graph.nodes]
    names = [node.primitive for node in legalise(graph, "qnn").nodes]
    assert "greater" not in names and "astype" not in names and "minimum" in names
    x = np.asarray([[-1e-45, 1e-45, 0.0, -0.0], [1e-38, -1e-38, 3e38, -3e38], [1, 2, -1, -2]], np.float32)
    np.testing.assert_array_equal(
        interpret(legalise(graph, "qnn"), {"0": x})["output"], interpret(graph, {"0": x})["output"]
    )


GOLDEN = {
    "openvino": "gemm relu greater astype multiply gemm",
    "webgpu": "gemm relu greater astype multiply gemm",
    "qnn": "gemm relu multiply minimum multiply minimum multiply gemm",
    "coreml": (
        "matmul add relu multiply negative maximum negative multiply negative maximum negative multiply transpose "
        "matmul add"
    ),
    "webnn": "gemm relu greater astype multiply gemm add",
}


@pytest.mark.capability("E10")
@pytest.mark.parametrize("provider", GOLDEN)
def test_the_same_layer_is_another_graph_for_each_provider(provider: str) -> None:
    def layer(i: GraphInputs) -> dict[str, Array]:
        def loss(w: Array) -> Array:
            return cnp.sum(ops.relu(i["x"] @ w + i["b"]) * i["g"])

        return {"next/w": i["w"] + grad(loss)(i["w"])}

    specs = {"x": TensorSpec((8, 4)), "w": TensorSpec((4, 3)), "b": TensorSpec((3,)), "g": TensorSpec((8, 3))}
    graph = legalise(optimise(trace_named(layer, specs)), provider)
    assert " ".join(node.primitive for node in graph.nodes if node.primitive != "constant") == GOLDEN[provider]


@settings(max_examples=30)
@given(
    groups=st.integers(1, 3),
    inputs=st.integers(1, 2),
    outputs=st.integers(1, 2),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(*[st.integers(0, 3)] * 4),
    size=st.tuples(st.integers(5, 8), st.integers(5, 8)),
)
def test_a_transposed_convolution_is_a_convolution(
    groups: int,
    inputs: int,
    outputs: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int, int, int],
    size: tuple[int, int],
) -> None:
    pads = (padding[:2], padding[2:])
    window: dict[str, Any] = {"stride": stride, "padding": pads, "dilation": dilation, "groups": groups}
    x, w = (
        TensorSpec((2, groups * inputs, *size), "float64"),
        TensorSpec((groups * outputs, inputs, *kernel), "float64"),
    )
    made = trace(lambda a, b: bind("conv", a, b, **window), x, w).graph.nodes[0].output.type

    def back(g: Array, weights: Array) -> Array:
        return bind("conv_input_gradient", g, weights, size=size, **window)

    graph = trace(back, TensorSpec(made.shape, "float64"), w).graph
    rng = np.random.default_rng(0)
    given = {"0": rng.normal(size=made.shape), "1": rng.normal(size=w.shape)}
    for provider in ("coreml", "webnn", "webgpu"):
        after = legalise(graph, provider)
        if provider == "coreml":
            assert [node.primitive for node in after.nodes].count("conv_input_gradient") == 0
        expected = interpret(graph, given)["output"]
        np.testing.assert_allclose(interpret(after, given)["output"], expected, rtol=1e-10, atol=1e-10)


def test_the_groups_that_one_provider_gets_wrong_have_two_outputs() -> None:
    def back(g: Array, w: Array) -> Array:
        window = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 2}
        return bind("conv_input_gradient", g, w, size=(4, 4), **window)

    graph = trace(back, TensorSpec((1, 4, 3, 3)), TensorSpec((4, 1, 2, 2))).graph
    (node,) = [n for n in legalise(graph, "webgpu").nodes if n.primitive == "conv_input_gradient"]
    assert node.inputs[1].type.shape == (4, 2, 2, 2)
    assert legalise(graph, "openvino") is graph


@settings(max_examples=40)
@given(x=st.floats(2.0**-149, 2.0**127, width=32), dtype=st.sampled_from(["float32", "float64"]))
def test_the_logarithm_made_of_roots_is_the_logarithm(x: float, dtype: str) -> None:
    graph = legalise(trace(cnp.log, TensorSpec((5,), dtype)).graph, "coreml")
    assert "log" not in [node.primitive for node in graph.nodes]
    given = np.asarray([x, 1.0, 0.0, 1 + 1e-6, -1.0], dtype)
    found = interpret(graph, {"0": given})["output"]
    assert found[2] == -np.inf and np.isnan(found[4])
    expected = np.log(given[[0, 1, 3]].astype(np.float64))
    tolerance = 8 * np.finfo(dtype).eps
    assert (np.abs(found[[0, 1, 3]] - expected) <= tolerance * np.maximum(1, np.abs(expected))).all()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("provider", ["qnn", "coreml"])
def test_integers_are_compared_over_their_whole_range(provider: str, dtype: str) -> None:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    numbers = np.asarray([least, least + 1, -1, 0, 1, 2**24, 2**24 + 1, most - 1, most], dtype)
    given = dict(zip("01", (x.ravel() for x in np.meshgrid(numbers, numbers)), strict=True))

    def compare(a: Array, b: Array) -> tuple[Array, Array]:
        return cnp.astype(a > b, "float32"), cnp.astype(a == b, "float32")

    graph = trace(compare, *[TensorSpec((81,), dtype)] * 2).graph
    after = legalise(graph, provider)
    assert not {"greater", "equal"} & {node.primitive for node in after.nodes}
    for name, expected in interpret(graph, given).items():
        np.testing.assert_array_equal(interpret(after, given)[name], expected)


def test_a_choice_leaves_out_infinities_that_are_not_chosen() -> None:
    graph = trace(lambda x, y: cnp.where(x > 0.0, x, y), TensorSpec((4,)), TensorSpec((4,))).graph
    x, y = np.asarray([1, 2, -1, -np.inf], np.float32), np.asarray([np.inf, -np.inf, 3, 4], np.float32)
    assert interpret(legalise(graph, "qnn"), {"0": x, "1": y})["output"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums_are_products_where_there_is_no_operator(reverse: bool) -> None:
    graph = trace(lambda x: bind("cumsum", x, axis=1, reverse=reverse), TensorSpec((2, 5, 3), "float64")).graph
    after = legalise(graph, "qnn")
    assert "matmul" in [node.primitive for node in after.nodes]
    x = np.random.default_rng(0).normal(size=(2, 5, 3))
    np.testing.assert_allclose(interpret(after, {"0": x})["output"], interpret(graph, {"0": x})["output"], atol=1e-14)


def test_an_operator_that_the_provider_lacks_is_refused_with_the_line() -> None:
    graph = trace(lambda x: bind("equal", x, x), TensorSpec((3,))).graph
    with pytest.raises(GraphRefused, match=r"test_legalise\.py:\d+: the provider coreml lacks the operator Equal") as e:
        written(graph, "coreml")
    assert e.value.hint and "provider" in e.value.hint


def test_an_unknown_provider_is_refused() -> None:
    graph = trace(cnp.exp, TensorSpec((3,))).graph
    with pytest.raises(InputError, match="no provider 'abacus'"):
        legalise(graph, "abacus")
    with pytest.raises(InputError, match="no provider 'abacus'"):
        written(graph, "abacus")


def test_loops_are_written_out_where_the_provider_has_none() -> None:
    def total(h: Array, xs: Array) -> Array:
        return scan(lambda c, x: (c + ops.relu(x), None), h, xs)[0]

    graph = optimise(trace(total, TensorSpec((2,)), TensorSpec((3, 2))).graph)
    assert "Scan" in operators(written(graph, "openvino"))
    assert "Scan" not in operators(written(graph, "webgpu"))
    endless = trace(lambda x: while_loop(lambda c: cnp.sum(c) < 10.0, lambda c: c + 1.0, x), TensorSpec((2,))).graph
    with pytest.raises(TraceError, match="depends on data"):
        written(endless, "webgpu")
