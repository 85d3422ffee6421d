"""Convolutions and their gradients are plain on every target but those for which other forms were measured to pay; all
forms compute the same.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import onnx
import pytest

from coterie.compute import nn, ops
from coterie.compute import numpy as cnp
from coterie.compute.array import Array, bind
from coterie.compute.autodiff import value_and_grad
from coterie.compute.control.functions import scan
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, NDArray
from coterie.compute.onnx.writer import Target, to_onnx
from coterie.compute.passes import optimise
from coterie.compute.passes.tune import tune
from coterie.compute.runtime.executable import Executable
from coterie.compute.trace import GraphInputs, TensorSpec, trace, trace_named
from tests.compute.core.cases import CASES, Case, apply, single, window

FOR_CPU: tuple[Target, ...] = ("portable", "cpu", "wasm")
OTHERS: tuple[Target, ...] = tuple(target for target in get_args(Target) if target not in FOR_CPU)
CONVOLUTIONS = ("conv", "conv_input_gradient", "conv_weight_gradient")
WORK = ("Conv", "ConvTranspose", "MatMul")


def images(*shape: int) -> NDArray:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def traced(name: str, attributes: dict[str, Any], *operands: NDArray) -> Graph:
    def function(a: Array, b: Array) -> Array:
        return bind(name, a, b, **attributes)

    return trace(function, *operands).graph


def work(graph: Graph, target: Target) -> list[onnx.NodeProto]:
    """The nodes of a file that multiply."""
    nodes = onnx.load_from_string(to_onnx(graph, name="form", target=target)).graph.node
    return [node for node in nodes if node.op_type in WORK]


def reach(node: onnx.NodeProto) -> list[int] | None:
    return next((list(field.ints) for field in node.attribute if field.name == "dilations"), None)


def check_runs(graph: Graph, target: Target, *operands: NDArray) -> None:
    """The file, by ONNX Runtime, gives what NumPy gives for the plain graph."""
    feeds = dict(zip(graph.inputs, operands, strict=True))
    expected = interpret(graph, feeds)["output"]
    found = Executable(to_onnx(graph, name="form", target=target), threads=1).run(feeds)["output"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


Form = tuple[str, tuple[NDArray, NDArray], dict[str, Any], tuple[str, list[int] | None]]
AROUND, KERNEL = window(padding=((2, 2), (2, 2))), {"kernel": (5, 5)}
FORMS: list[Form] = [
    # Short rows: four to eight examples beside each other, as many as divide the batch.
    ("conv", (images(16, 3, 9, 9), images(4, 3, 5, 5)), {}, ("Conv", [1, 8])),
    ("conv", (images(10, 3, 9, 9), images(4, 3, 5, 5)), {}, ("Conv", [1, 5])),
    ("conv", (images(11, 3, 9, 9), images(4, 3, 5, 5)), {}, ("Conv", [1, 1])),
    ("conv", (images(8, 3, 9, 20), images(4, 3, 5, 5)), {}, ("Conv", [1, 1])),
    ("conv", (images(8, 1, 9, 9), images(4, 1, 5, 5)), {}, ("Conv", [1, 1])),
    ("conv_input_gradient", (images(16, 4, 9, 9), images(4, 3, 5, 5)), {"size": (9, 9)}, ("ConvTranspose", [1, 4])),
    ("conv_input_gradient", (images(16, 4, 8, 8), images(4, 3, 5, 5)), {"size": (8, 8)}, ("ConvTranspose", [1, 8])),
    ("conv_input_gradient", (images(8, 4, 9, 20), images(4, 3, 5, 5)), {"size": (9, 20)}, ("ConvTranspose", [1, 1])),
    # The channels in the columns; a single channel unrolled when that is small, an image otherwise.
    ("conv_weight_gradient", (images(8, 10, 9, 9), images(8, 6, 9, 9)), KERNEL, ("Conv", [1, 10])),
    ("conv_weight_gradient", (images(2, 600, 5, 5), images(2, 3, 5, 5)), KERNEL, ("MatMul", None)),
    ("conv_weight_gradient", (images(8, 1, 24, 24), images(8, 6, 24, 24)), KERNEL, ("MatMul", None)),
    ("conv_weight_gradient", (images(8, 1, 80, 80), images(8, 2, 80, 80)), KERNEL, ("Conv", [1, 1])),
]


@pytest.mark.parametrize("target", FOR_CPU)
@pytest.mark.parametrize(("name", "operands", "attributes", "how"), FORMS)
def test_the_form_for_cpus_follows_from_the_sizes(
    name: str,
    operands: tuple[NDArray, NDArray],
    attributes: dict[str, Any],
    how: tuple[str, list[int] | None],
    target: Target,
) -> None:
    graph = traced(name, AROUND | attributes, *operands)
    (node,) = work(graph, target)
    assert (node.op_type, reach(node)) == how
    check_runs(graph, target, *operands)


@pytest.mark.capability("E10")
@pytest.mark.parametrize("target", OTHERS)
def test_e10_every_other_target_gets_one_plain_convolution(target: Target) -> None:
    for name, operands, attributes, _ in FORMS:
        graph = traced(name, AROUND | attributes, *operands)
        assert tune(graph, target) is graph
        if target in ("coreml", "npu") and name == "conv_input_gradient":
            continue  # CoreML takes no weights of it that are an input: a rule of legalisation writes a convolution
        (node,) = work(graph, target)
        assert (node.op_type, reach(node)) == ("ConvTranspose" if name == "conv_input_gradient" else "Conv", [1, 1])


@pytest.mark.parametrize(("width", "made", "how"), [(9, 6, ["MatMul"] * 5), (9, 12, ["Conv"]), (130, 6, ["Conv"])])
def test_the_gradient_of_weights_by_channel_is_products_of_rows(width: int, made: int, how: list[str]) -> None:
    """Where rows are short and each channel has one kernel."""
    x, dy, attributes = images(2, 6, 7, width), images(2, made, 7, width), window(padding=((2, 2), (2, 2)), groups=6)
    graph = traced("conv_weight_gradient", {"kernel": (5, 5), **attributes}, x, dy)
    assert [node.op_type for node in work(graph, "portable")] == how
    assert [node.op_type for node in work(graph, "gpu")] == ["Conv"]
    check_runs(graph, "portable", x, dy)


@pytest.mark.parametrize(
    ("kernel", "padding", "made"), [(3, 1, [1, 6, 3, 12]), (7, 3, [1, 6, 7, 28]), (1, 0, [1, 6, 1, 4])]
)
def test_the_gradient_of_weights_makes_nothing_of_what_a_stride_leaves_over(
    kernel: int, padding: int, made: list[int]
) -> None:
    """Neither of the padding at the end, nor of the elements that a kernel of one passes over."""
    x, dy = images(4, 4, 8, 8), images(4, 6, 4, 4)
    attributes = window(stride=(2, 2), padding=((padding, padding), (padding, padding)))
    graph = traced("conv_weight_gradient", {"kernel": (kernel, kernel), **attributes}, x, dy)
    model = onnx.shape_inference.infer_shapes(onnx.load_from_string(to_onnx(graph, name="gradient")))
    (node,) = [node for node in model.graph.node if node.op_type == "Conv"]
    (found,) = [value for value in model.graph.value_info if value.name == node.output[0]]
    assert [size.dim_value for size in found.type.tensor_type.shape.dim] == made
    check_runs(graph, "portable", x, dy)


ALL = [pytest.param(name, c, id=f"{name}-{i}") for name in CONVOLUTIONS for i, c in enumerate(CASES[name])]


@pytest.mark.parametrize(("name", "c"), ALL)
def test_both_forms_of_every_case_compute_the_same_and_tuning_again_changes_nothing(name: str, c: Case) -> None:
    graph = trace(apply(name, c), *c.operands).graph
    tuned = tune(graph, "portable")
    assert tune(tuned, "portable") is tuned
    feeds = dict(zip(graph.inputs, c.operands, strict=True))
    expected = interpret(graph, feeds)["output"]
    np.testing.assert_allclose(interpret(tuned, feeds)["output"], expected, rtol=1e-10, atol=1e-12)
    # ``jit``, and so the laws of primitives, run the form for CPUs; this runs the plain one.
    few = single(c)
    check_runs(trace(apply(name, few), *few.operands).graph, "gpu", *few.operands)


def test_examples_are_laid_beside_each_other_once_however_short_rows_stay() -> None:
    graph = traced("conv", window(padding=((1, 1), (1, 1))), images(64, 2, 3, 1), images(4, 2, 3, 3))
    tuned = tune(graph, "portable")
    (node,) = [node for node in tuned.nodes if node.primitive == "conv"]
    assert node.inputs[0].type.shape == (8, 2, 3, 8) and tune(tuned, "portable") is tuned


def network(i: Mapping[str, Array]) -> Array:
    y = ops.relu(nn.Conv2d(3, 4, 3, padding=1)({"weight": i["first"], "bias": i["bias"]}, i["x"]))
    return nn.Conv2d(4, 4, 3, padding=1)({"weight": i["second"], "bias": i["bias"]}, y)


SPECS = {
    "x": TensorSpec((8, 3, 6, 6)),
    "first": TensorSpec((4, 3, 3, 3)),
    "second": TensorSpec((4, 4, 3, 3)),
    "bias": TensorSpec((4,)),
}


def test_layers_and_gradients_say_only_what_they_compute() -> None:
    def gradients(i: GraphInputs) -> dict[str, Array]:
        def loss(params: dict[str, Array]) -> Array:
            return cnp.sum(network({**i, **params}) ** 2)

        names = ("first", "second", "bias")
        return value_and_grad(loss)({name: i[name] for name in names})[1]

    graph = optimise(trace_named(gradients, SPECS))
    said = Counter(node.primitive for node in graph.nodes if node.primitive in CONVOLUTIONS)
    assert said == {"conv": 2, "conv_input_gradient": 1, "conv_weight_gradient": 2}
    assert not {"transpose", "strided_slice", "matmul"} & {node.primitive for node in graph.nodes}


def test_constant_weights_keep_the_plain_convolution() -> None:
    held = {name: images(*SPECS[name].shape) for name in ("first", "second", "bias")}
    fixed = {name: Array(value) for name, value in held.items()}
    graph = optimise(trace_named(lambda i: {"y": network({**fixed, "x": i["x"]})}, {"x": SPECS["x"]}))
    assert tune(graph, "portable") is graph


def test_convolutions_inside_of_loops_are_tuned_too() -> None:
    def repeated(i: GraphInputs) -> dict[str, Array]:
        def body(x: Array, _: None) -> tuple[Array, None]:
            return cnp.tanh(bind("conv", x, i["weight"], **window(padding=((1, 1), (1, 1))))), None

        return {"x": scan(body, i["x"], None, length=3)[0]}

    graph = optimise(trace_named(repeated, {"x": TensorSpec((8, 3, 6, 6)), "weight": TensorSpec((3, 3, 3, 3))}))
    after = tune(graph, "cpu")
    assert after is not graph and tune(after, "cpu") is after
    given = {"x": images(8, 3, 6, 6), "weight": images(3, 3, 3, 3)}
    np.testing.assert_allclose(interpret(after, given)["x"], interpret(graph, given)["x"], rtol=1e-5, atol=1e-6)
