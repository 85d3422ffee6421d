"""Passes for inference: each keeps the meaning, can be repeated without effect, makes nothing dearer, and is refused on
graphs that train.
"""

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import nn, ops
from coterie.compute import numpy as cnp
from coterie.compute.array import Array, as_array
from coterie.compute.autodiff import grad
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, NDArray
from coterie.compute.nn.zoo import gru, lenet, mlp, transformer
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes.cost import flops
from coterie.compute.passes.inference import (
    INFERENCE_PASSES,
    bind_weights,
    choose_layout,
    fold_batch_norm,
    fold_constants,
    in_float16,
    optimise_for_inference,
    optimise_for_integers,
    reorder_operators,
    replace_operators,
)
from coterie.compute.runtime.executable import Executable
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.errors import GraphRefused, InputError

PASSES = {**INFERENCE_PASSES, "all": optimise_for_inference, "all for integers": optimise_for_integers}


def numbers(*shape: int, seed: int = 0, dtype: str = "float64") -> NDArray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def of(fn: Callable[[Array], Array], *shape: int, dtype: str = "float64") -> Graph:
    """The graph of a function of one array, x → y."""
    return trace_named(lambda given: {"y": fn(given["x"])}, {"x": TensorSpec(shape, dtype)})


def weights_of(module: nn.Module, dtype: str = "float64") -> dict[str, NDArray]:
    """Weights in which no scale is 1, no shift 0 and no variance negative."""
    made = {name: np.asarray(value) for name, value in module.init(0).items()}
    rng = np.random.default_rng(1)
    return {
        name: (np.abs(value + rng.uniform(0.1, 1.5, value.shape)) if value.ndim == 1 else value).astype(dtype)
        for name, value in made.items()
    }


def held(weights: Mapping[str, NDArray]) -> dict[str, Array]:
    return {name: as_array(value) for name, value in weights.items()}


def model(module: nn.Module, *shape: int) -> Graph:
    """A model in evaluation mode, its weights put in afterwards."""
    weights = weights_of(module)
    specs = {name: TensorSpec(value.shape, "float64") for name, value in weights.items()}

    def answer(given: GraphInputs) -> dict[str, Array]:
        return {"y": module({name: given[name] for name in weights}, given["x"])}

    return bind_weights(trace_named(answer, specs | {"x": TensorSpec(shape, "float64")}), weights)


def answers(graph: Graph, seed: int = 7) -> NDArray:
    x = graph.inputs["x"].type
    return interpret(graph, {"x": numbers(*x.shape, seed=seed).astype(x.dtype)})["y"]


def kinds(graph: Graph) -> Counter[str]:
    return Counter(node.primitive for node in graph.nodes)


def parameters(graph: Graph) -> int:
    return sum(node.output.type.size for node in graph.nodes if node.primitive == "constant")


def residual(x: Array) -> Array:
    """A convolution that is read twice, so that nothing may be folded into it."""
    made = ops.conv2d(x, numbers(4, 4, 3, 3), padding=1)
    return made * numbers(4, 1, 1) + ops.relu(made)


BATCH_NORM = nn.Sequential(
    nn.Conv2d(3, 4, 3, padding=1, bias=False),
    nn.BatchNorm2d(4),
    nn.ReLU(),
    nn.BatchNorm2d(4),
    nn.Conv2d(4, 6, 3, groups=2),
    nn.BatchNorm2d(6),
    nn.ReLU(),
    nn.AvgPool2d(2),
    nn.Flatten(),
    nn.Linear(24, 8),
    nn.BatchNorm1d(8),
    nn.ReLU(),
    nn.Linear(8, 5),
)
GRAPHS: Mapping[str, Callable[[], Graph]] = {
    "batch norm": lambda: model(BATCH_NORM, 2, 3, 6, 6),
    "one row": lambda: model(mlp((5, 7, 3)), 1, 5),
    "one number": lambda: model(mlp((1, 1)), 1, 1),
    "lenet": lambda: model(lenet(), 2, 1, 28, 28),
    "transposed convolution": lambda: model(
        nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), nn.BatchNorm2d(6)), 2, 4, 5, 5
    ),
    "read twice": lambda: of(residual, 2, 4, 5, 5),
    "group norm": lambda: model(nn.Sequential(nn.Conv2d(2, 4, 1), nn.GroupNorm(2, 4), nn.ReLU()), 2, 2, 4, 4),
    "channels last": lambda: of(channels_last, 2, 6, 6, 3),
}


@pytest.mark.capability("G2", "G3", "G4", "G5", "G6")
@pytest.mark.parametrize("case", GRAPHS)
@pytest.mark.parametrize("name", PASSES)
def test_a_pass_keeps_the_meaning_and_makes_nothing_dearer(name: str, case: str) -> None:
    graph, run = GRAPHS[case](), PASSES[name]
    after = run(graph)
    np.testing.assert_allclose(answers(after), answers(graph), rtol=1e-9, atol=1e-9)
    assert list(after.inputs) == list(graph.inputs) and list(after.outputs) == list(graph.outputs)
    assert [v.type for v in after.outputs.values()] == [v.type for v in graph.outputs.values()]
    assert flops(after) <= flops(graph)
    assert run(after) is after


@pytest.mark.parametrize("make", [transformer, gru])
def test_models_over_tokens_keep_their_answers(make: Callable[..., nn.Module]) -> None:
    module = make(vocabulary=11, width=8)
    weights = held(module.init(0))
    graph = trace_named(lambda given: {"y": module(weights, given["x"])}, {"x": TensorSpec((2, 5), "int32")})
    x = np.random.default_rng(0).integers(0, 11, (2, 5)).astype(np.int32)
    before = interpret(graph, {"x": x})["y"]
    after = optimise_for_inference(graph)
    np.testing.assert_allclose(interpret(after, {"x": x})["y"], before, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(interpret(in_float16(after), {"x": x})["y"], before, atol=0.02)
    assert flops(after) <= flops(graph)


# ---- G2: BatchNorm


@pytest.mark.capability("G2")
def test_g2_batch_norm_goes_into_the_weights_beside_it() -> None:
    after = optimise_for_inference(GRAPHS["batch norm"]())
    left = kinds(after)
    assert left["conv"] == 2 and left["gemm"] == 2
    assert not {"multiply", "add", "subtract", "divide", "sqrt", "transpose"} & left.keys()


@pytest.mark.capability("G2")
def test_g2_a_convolution_with_its_batch_norm_has_the_weights_that_the_definition_gives() -> None:
    """W' = W gamma / sqrt(variance + epsilon), b' = beta + (b - mean) gamma / sqrt(variance + epsilon)."""
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    w = weights_of(net)
    graph = of(lambda x: net(held(w), x), 1, 2, 4, 4)
    after = fold_batch_norm(graph)
    made = after.producers()
    (conv,) = (node for node in after.nodes if node.primitive == "conv")
    weights, bias = (made[value].attributes["value"] for value in conv.inputs[1:])
    scale = w["1.weight"] / np.sqrt(w["1.running_var"] + 1e-5)
    np.testing.assert_allclose(weights, w["0.weight"] * scale[:, None, None, None], rtol=1e-12)
    np.testing.assert_allclose(bias, w["1.bias"] + (w["0.bias"] - w["1.running_mean"]) * scale, rtol=1e-12)


@pytest.mark.capability("G2")
def test_a_shift_before_padding_stays_and_a_scale_does_not() -> None:
    """The border is padded with 0 and not with the shift."""
    net = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 2, 3, padding=1))
    left = kinds(optimise_for_inference(model(net, 2, 3, 5, 5)))
    assert (left["add"], left["multiply"]) == (1, 1)
    bare = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 2, 3))
    assert not {"add", "multiply"} & kinds(optimise_for_inference(model(bare, 2, 3, 5, 5))).keys()


def test_for_integers_scales_stay_before_a_product_and_go_into_the_one_behind() -> None:
    """What they bring to one size is quantised with one range."""
    net = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2))
    left = kinds(optimise_for_integers(model(net, 2, 3, 5, 5)))
    assert (left["multiply"], left["add"], left["conv"]) == (1, 1, 1)


@pytest.mark.parametrize("scale", [np.inf, np.nan, 1e30])
def test_what_would_leave_the_range_of_the_weights_is_not_folded(scale: float) -> None:
    w = np.full((1, 1, 1, 1), 1e20, np.float32)
    graph = of(lambda x: ops.conv2d(x, w) * np.float32(scale), 1, 1, 2, 2, dtype="float32")
    assert kinds(fold_batch_norm(graph))["multiply"] == 1


def test_what_is_read_twice_is_not_folded_into() -> None:
    assert kinds(optimise_for_inference(GRAPHS["read twice"]()))["multiply"] == 1


# ---- refusals


def _training(name: str) -> Graph:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))
    w = weights_of(net)
    specs = {"x": TensorSpec((2, 2, 4, 4), "float64"), "w": TensorSpec(w["0.weight"].shape, "float64")}

    def loss(weight: Array, x: Array) -> Array:
        return cnp.sum(net({**held(w), "0.weight": weight}, x) ** 2)

    def step(given: GraphInputs) -> dict[str, Array]:
        match name:
            case "an update":
                return {"next/w": given["w"] * 0.5}
            case "a gradient":
                return {"g": grad(loss)(given["w"], given["x"])}
            case _:
                return {"y": net({**held(w), "0.weight": given["w"]}, given["x"], nn.Mode(training=True))}

    return trace_named(step, specs)


@pytest.mark.capability("G2", "G3")
@pytest.mark.parametrize("run", [*PASSES.values(), in_float16], ids=[*PASSES, "float16"])
@pytest.mark.parametrize("sign", ["an update", "a gradient", "statistics of the batch"])
def test_g2_g3_graphs_that_train_are_refused(run: Callable[[Graph], Graph], sign: str) -> None:
    with pytest.raises(GraphRefused, match="the graph trains") as refused:
        run(_training(sign))
    assert refused.value.reason == "training_graph"
    assert "test_inference.py" in refused.value.message or sign == "an update" or "normalis" in refused.value.message


@pytest.mark.parametrize(
    "module", [nn.LayerNorm(4), nn.RMSNorm(4), nn.GroupNorm(2, 4), nn.InstanceNorm(4), nn.BatchNorm1d(4)]
)
def test_normalisation_of_single_examples_is_no_training(module: nn.Module) -> None:
    shape = (2, 4, 3, 3) if isinstance(module, nn.GroupNorm | nn.InstanceNorm) else (3, 4)
    graph = model(module, *shape)
    np.testing.assert_allclose(answers(optimise_for_inference(graph)), answers(graph), rtol=1e-9, atol=1e-9)


# ---- G3: constants


@pytest.mark.capability("G3")
def test_g3_what_depends_on_constants_alone_is_one_constant() -> None:
    a, b = numbers(3, 3), numbers(3, seed=1)
    graph = bind_weights(
        trace_named(
            lambda given: {"y": given["x"] @ (cnp.tanh(given["a"]).T * given["b"])},
            {name: TensorSpec(shape, "float64") for name, shape in (("x", (2, 3)), ("a", (3, 3)), ("b", (3,)))},
        ),
        {"a": a, "b": b},
    )
    after = fold_constants(graph)
    assert kinds(after) == {"constant": 1, "matmul": 1}
    (held,) = (node.attributes["value"] for node in after.nodes if node.primitive == "constant")
    np.testing.assert_array_equal(held, np.tanh(a).T * b)
    assert fold_constants(after) is after


def test_weights_are_bound_by_name_and_type() -> None:
    graph = trace_named(
        lambda given: {"y": given["x"] * given["w"]},
        {"x": TensorSpec((2,), "float32"), "w": TensorSpec((2,), "float32")},
    )
    with pytest.raises(InputError, match="no input v"):
        bind_weights(graph, {"v": np.ones(2, np.float32)})
    with pytest.raises(InputError, match=r"'w' is float32\[2\], got float64\[2\]"):
        bind_weights(graph, {"w": np.ones(2)})
    assert list(bind_weights(graph, {"w": np.ones(2, np.float32)}).inputs) == ["x"]


# ---- G4: replacement


def batch_norm_of_a_file(x: Array) -> Array:
    """As importers write it: four numbers a channel."""
    scale, bias, mean, variance = (np.abs(numbers(4, 1, 1, seed=seed)) + 0.1 for seed in range(4))
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + bias


A, ONES = numbers(4, 4), np.ones(4)
REPLACED: Mapping[str, tuple[Callable[[Array], Array], dict[str, int]]] = {
    "batch norm": (batch_norm_of_a_file, {"multiply": 1, "add": 1}),
    "difference": (lambda x: x - ONES, {"add": 1}),
    "quotient": (lambda x: x / (2 * ONES), {"multiply": 1}),
    "quotient by 0 stays": (lambda x: x / (ONES * 0), {"divide": 1}),
    "scales": (lambda x: (x * ONES) * (3 * ONES), {"multiply": 1}),
    "shifts": (lambda x: (x + ONES) + (3 * ONES), {"add": 1}),
    "shifts that would be more numbers together stay": (lambda x: (x + ONES) + numbers(3, 1), {"add": 2}),
    "square": (lambda x: x ** np.float64(2), {"multiply": 1}),
    "root": (lambda x: (x * x) ** np.float64(0.5), {"multiply": 1, "sqrt": 1}),
    "maximum with 0": (lambda x: cnp.maximum(x, 0.0), {"relu": 1}),
    "relu of relu": (lambda x: ops.relu(ops.sigmoid(ops.relu(x))), {"relu": 1, "sigmoid": 1}),
    "layers with nothing between": (lambda x: (x @ A) @ A, {"gemm": 1}),
    "factors of low rank stay": (lambda x: (x @ numbers(4, 1)) @ numbers(1, 4), {"gemm": 2}),
}


@pytest.mark.capability("G4")
@pytest.mark.parametrize("case", REPLACED)
def test_g4_an_operator_becomes_a_cheaper_one(case: str) -> None:
    fn, left = REPLACED[case]
    graph = of(fn, 2, 4, 3, 3) if case == "batch norm" else of(fn, 3, 4)
    after = replace_operators(graph)
    assert {name: count for name, count in kinds(after).items() if name != "constant"} == left
    np.testing.assert_allclose(answers(after), answers(graph), rtol=1e-9, atol=1e-12)
    assert flops(after) <= flops(graph)
    assert parameters(after) <= parameters(fold_constants(graph))


def test_linear_layers_with_nothing_between_are_one_bias_and_all() -> None:
    graph = of(lambda x: (x @ A + ONES) @ A + ONES, 3, 4)
    after = optimise_for_inference(graph)
    assert kinds(after) == {"constant": 2, "gemm": 1}
    np.testing.assert_allclose(answers(after), answers(graph), rtol=1e-9)


@pytest.mark.capability("G4")
def test_g4_batch_norm_has_half_the_parameters_as_scale_and_shift() -> None:
    net = nn.BatchNorm2d(16)
    graph = model(net, 2, 16, 3, 3)
    held = sum(value.size for value in weights_of(net).values())
    assert (held, parameters(replace_operators(graph))) == (64, 32)


# ---- G5: order

W, C = numbers(4, 4), numbers(4)
MOVED: Mapping[str, tuple[Callable[[Array], Array], tuple[int, ...]]] = {
    "crop before functions": (lambda x: cnp.tanh(x * C)[1:3, :2], (8, 4)),
    "crop before a product": (lambda x: (x @ W)[1:2, 1:3], (8, 4)),
    "crop before stacked products": (lambda x: (x @ W)[:, -1], (2, 6, 4)),
    "crop before stacked products with a bias": (lambda x: (x @ W + C)[:, -1:], (2, 6, 4)),
    "crop before softmax": (lambda x: ops.softmax(x, axis=-1)[:1], (8, 4)),
    "crop before a transposition": (lambda x: cnp.permute_dims(cnp.exp(x), (0, 2, 1))[:, :, :1], (2, 6, 4)),
    "crop before a reshape": (lambda x: cnp.reshape(cnp.tanh(x), (6, 2, 2))[:2], (6, 4)),
    "crop before a concatenation": (lambda x: cnp.concat([cnp.tanh(x), x], axis=0)[9:], (8, 4)),
    "pooling before relu": (lambda x: ops.max_pool2d(ops.relu(x), 2), (1, 2, 4, 4)),
    "pooling before tanh": (lambda x: ops.max_pool2d(cnp.tanh(x), 2), (1, 2, 4, 4)),
    "maximum before sigmoid": (lambda x: cnp.max(ops.sigmoid(x), axis=1), (8, 4)),
    "average before scale": (lambda x: ops.avg_pool2d(x * numbers(2, 1, 1), 2), (1, 2, 4, 4)),
    "average before shift": (lambda x: ops.avg_pool2d(x + numbers(2, 1, 1), 2), (1, 2, 4, 4)),
    "sum before scale": (lambda x: cnp.sum(x * C, axis=0), (8, 4)),
    "sum before scale, axes kept": (lambda x: cnp.sum(x * 3.0, axis=1, keepdims=True), (8, 4)),
}


@pytest.mark.capability("G5")
@pytest.mark.parametrize("case", MOVED)
def test_g5_another_order_takes_fewer_operations(case: str) -> None:
    fn, shape = MOVED[case]
    graph = of(fn, *shape)
    after = reorder_operators(graph)
    assert flops(after) < flops(graph)
    np.testing.assert_allclose(answers(after), answers(graph), rtol=1e-12, atol=1e-12)


KEPT: Mapping[str, tuple[Callable[[Array], Array], tuple[int, ...]]] = {
    "what is read twice": (lambda x: _twice(cnp.tanh(x)), (8, 4)),
    "a crop along a softmax": (lambda x: ops.softmax(x, axis=-1)[:, :1], (8, 4)),
    "a scale that differs along the sum": (lambda x: cnp.sum(x * C, axis=1), (8, 4)),
    "a function that turns order": (lambda x: ops.max_pool2d(-x, 2), (1, 2, 4, 4)),
}


def _twice(x: Array) -> Array:
    return x[:1] + cnp.sum(x, axis=0)


@pytest.mark.capability("G5")
@pytest.mark.parametrize("case", KEPT)
def test_g5_nothing_moves_where_the_meaning_would_change_or_nothing_is_saved(case: str) -> None:
    fn, shape = KEPT[case]
    graph = of(fn, *shape)
    assert flops(reorder_operators(graph)) == flops(fold_constants(graph))
    np.testing.assert_array_equal(answers(reorder_operators(graph)), answers(graph))


# ---- G6: layout

HWIO = [numbers(4, 3, 3, 3, seed=1), numbers(4, 4, 3, 3, seed=2)]


def channels_last(x: Array) -> Array:
    """Images [B, H, W, C] through layers that each turn them for the convolution and back, as TensorFlow writes."""
    for weight in HWIO:
        image = ops.conv2d(cnp.permute_dims(x, (0, 3, 1, 2)), weight, padding=1)
        x = ops.relu(cnp.permute_dims(image, (0, 2, 3, 1)) * numbers(4, seed=3) + numbers(4, seed=4))
        x = cnp.pad(x, ((0, 0), (0, 1), (1, 0), (0, 0)))
    return cnp.reshape(x, (x.shape[0], -1)) @ numbers(8 * 8 * 4, 2, seed=5)


TRANSPOSITIONS: Mapping[str, tuple[Callable[[Array], Array], tuple[int, ...], int, int]] = {
    # name: function, shape, transpositions before, after
    "a network in channels last": (channels_last, (2, 6, 6, 3), 4, 1),
    "there and back around a bias": (
        lambda x: cnp.permute_dims(cnp.permute_dims(x, (0, 2, 3, 1)) + numbers(3), (0, 3, 1, 2)),
        (2, 3, 4, 4),
        2,
        0,
    ),
    "two branches of one order": (
        lambda x: cnp.permute_dims(x, (0, 2, 3, 1)) + cnp.permute_dims(cnp.tanh(x), (0, 2, 3, 1)),
        (2, 3, 4, 4),
        2,
        1,
    ),
    "into a mean over places": (
        lambda x: cnp.mean(cnp.permute_dims(x, (0, 2, 3, 1)), axis=(1, 2)),
        (2, 3, 4, 4),
        1,
        0,
    ),
    "past a concatenation": (
        lambda x: cnp.permute_dims(
            cnp.concat([cnp.permute_dims(x, (0, 2, 3, 1)), cnp.permute_dims(x * x, (0, 2, 3, 1))], axis=-1),
            (0, 3, 1, 2),
        ),
        (2, 3, 4, 4),
        3,
        0,
    ),
    "one alone": (lambda x: cnp.permute_dims(x, (0, 2, 3, 1)), (2, 3, 4, 4), 1, 1),
}


@pytest.mark.capability("G6")
@pytest.mark.parametrize("case", TRANSPOSITIONS)
def test_g6_transpositions_meet_and_cancel(case: str) -> None:
    """A chain keeps at most those at its ends: fewer would be another function."""
    fn, shape, before, left = TRANSPOSITIONS[case]
    graph = of(fn, *shape)
    assert kinds(graph)["transpose"] == before
    after = choose_layout(graph)
    assert kinds(after)["transpose"] == left
    np.testing.assert_allclose(answers(after), answers(graph), rtol=1e-9, atol=1e-9)


# ---- float16


A32 = A.astype(np.float32)
HALVED: Mapping[str, tuple[Callable[[Array], Array], set[str]]] = {
    "what follows a product": (lambda x: ops.relu(x @ A32) + np.float32(1), {"gemm", "relu", "add"}),
    "not an exponential": (lambda x: cnp.exp(x @ A32), {"gemm"}),
    "not a sum": (lambda x: cnp.sum(x @ A32, axis=1), {"gemm"}),
    "not a square": (lambda x: (x @ A32) ** np.float32(2), {"gemm"}),
    "not with a number beyond 65504": (lambda x: cnp.tanh(x @ A32) * np.float32(1e6), {"gemm", "tanh"}),
    "not with a number below 6e-8": (lambda x: cnp.tanh(x @ A32) * np.float32(1e-9), {"gemm", "tanh"}),
    "not with weights beyond 65504": (lambda x: x @ (A32 * np.float32(1e6)), set[str]()),
    "again from the next product on": (lambda x: ops.softmax(x @ A32) @ A32, {"gemm"}),
    "not without a product": (lambda x: ops.relu(x), set[str]()),
}


@pytest.mark.parametrize("case", HALVED)
def test_float16_is_where_it_keeps_the_meaning(case: str) -> None:
    fn, half = HALVED[case]
    graph = optimise_for_inference(of(fn, 3, 4, dtype="float32"))
    after = in_float16(graph)
    assert {v.type.dtype for v in (*after.inputs.values(), *after.outputs.values())} == {"float32"}
    made = {node.primitive for node in after.nodes if node.output.type.dtype == "float16"}
    assert made - {"constant", "astype"} == half
    np.testing.assert_allclose(answers(after), answers(graph), rtol=0.02, atol=0.02)


# ---- anything

CONSTANTS = [numbers(4, seed=21), numbers(4, 4, seed=22), numbers(1, seed=23), numbers(3, 1, seed=24)]
STEPS: list[Callable[[Array, NDArray], Array]] = [
    lambda x, c: x * c,
    lambda x, c: x + c,
    lambda x, c: x - c,
    lambda x, c: as_array(c) - x,
    lambda x, c: x / (2 + c * c),
    lambda x, c: cnp.maximum(x, c),
    lambda x, c: ops.relu(x),
    lambda x, c: cnp.tanh(x),
    lambda x, c: x @ c if c.shape == (4, 4) and x.shape[-1] == 4 else x,
    lambda x, c: as_array(c) @ x.T if c.shape == (4, 4) and x.shape[-1] == 4 else x,
    lambda x, c: x.T,
    lambda x, c: x[1:],
    lambda x, c: x[:, :2],
    lambda x, c: cnp.concat([x, x * 2.0], axis=1),
    lambda x, c: cnp.sum(x, axis=0, keepdims=True) + x,
    lambda x, c: cnp.max(x, axis=1, keepdims=True),
    lambda x, c: ops.softmax(x),
    lambda x, c: cnp.reshape(x, (x.shape[1], x.shape[0])),
]


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 3), st.booleans()), min_size=1, max_size=9))
def test_any_chain_keeps_its_meaning(steps: list[tuple[int, int, bool]]) -> None:
    def chain(x: Array) -> Array:
        earlier = x
        for which, constant, again in steps:
            try:
                made = STEPS[which % len(STEPS)](x, CONSTANTS[constant])
                if again and made.shape == earlier.shape:
                    made = made + earlier
                if made.size and made.ndim == 2:
                    earlier, x = x, made
            except InputError:
                continue
        return x

    graph = of(chain, 3, 4)
    after = optimise_for_inference(graph)
    np.testing.assert_allclose(answers(after), answers(graph), rtol=1e-7, atol=1e-9)
    assert flops(after) <= flops(graph)
    assert optimise_for_inference(after) is after


def _like(x: Array, *shape: int, seed: int) -> NDArray:
    return numbers(*shape, seed=seed, dtype=x.dtype.name)


def _channels(x: Array, seed: int) -> NDArray:
    return np.abs(_like(x, x.shape[1], 1, 1, seed=seed)) + 0.5


TURNS = [(0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2)]
IMAGE_STEPS: list[Callable[[Array, int], Array]] = [
    lambda x, n: ops.conv2d(x, _like(x, 3, x.shape[1], 2, 2, seed=n), padding=n % 2),
    lambda x, n: ops.conv2d(x, _like(x, x.shape[1], 1, 1, 2, seed=n), groups=x.shape[1]),
    lambda x, n: ops.conv_transpose2d(x, _like(x, x.shape[1], 2, 2, 2, seed=n)),
    lambda x, n: x * _channels(x, n) + _channels(x, n + 1),
    lambda x, n: (x - _channels(x, n)) / _channels(x, n + 1),
    lambda x, n: ops.relu(x),
    lambda x, n: ops.max_pool2d(x, 2, 1),
    lambda x, n: ops.avg_pool2d(x, 2),
    lambda x, n: cnp.permute_dims(x, TURNS[n % 3]),
    lambda x, n: x[:, :, 1:, : 1 + n % 3],
    lambda x, n: x[:1],
    lambda x, n: cnp.pad(x, ((0, 0), (0, 0), (n % 2, 1), (0, n % 3))),
    lambda x, n: cnp.concat([x, ops.sigmoid(x)], axis=n % 4),
    lambda x, n: cnp.mean(x, axis=(2, 3), keepdims=True),
    lambda x, n: cnp.sum(x, axis=1 + n % 3, keepdims=True) + x,
    lambda x, n: cnp.reshape(
        cnp.reshape(x, (x.shape[0], -1)) @ _like(x, x.size // x.shape[0], 4, seed=n), (-1, 1, 2, 2)
    ),
]


def image_chain(steps: list[tuple[int, int, bool]]) -> Callable[[Array], Array]:
    """A function made of steps: which, its number, and whether what was there before is added."""

    def chain(x: Array) -> Array:
        earlier = x
        for which, n, again in steps:
            try:
                made = IMAGE_STEPS[which % len(IMAGE_STEPS)](x, n)
            except InputError:
                continue
            if again and made.shape == earlier.shape:
                made = made + earlier
            if 0 < made.size < 3000:
                earlier, x = x, made
        return x

    return chain


IMAGE_CHAINS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9), st.booleans()), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(steps=IMAGE_CHAINS)
def test_any_chain_over_images_keeps_its_meaning(steps: list[tuple[int, int, bool]]) -> None:
    graph = of(image_chain(steps), 2, 3, 5, 5)
    after = optimise_for_inference(graph)
    before = answers(graph)
    np.testing.assert_allclose(answers(after), before, rtol=1e-7, atol=1e-8 * max(1.0, np.abs(before).max()))
    assert flops(after) <= flops(graph)
    assert kinds(after)["transpose"] <= kinds(graph)["transpose"]
    assert optimise_for_inference(after) is after
    whole = optimise_for_integers(graph)
    np.testing.assert_allclose(answers(whole), before, rtol=1e-7, atol=1e-8 * max(1.0, np.abs(before).max()))


@settings(max_examples=30, deadline=None)
@given(steps=IMAGE_CHAINS)
def test_any_chain_over_images_is_run_as_it_is_meant(steps: list[tuple[int, int, bool]]) -> None:
    """By ONNX Runtime and its optimiser, in both precisions of a file."""
    graph = of(image_chain(steps), 2, 3, 5, 5, dtype="float32")
    before, x = answers(graph), numbers(2, 3, 5, 5, seed=7, dtype="float32")
    after = optimise_for_inference(graph)
    most = max(1.0, float(np.abs(before).max()))
    for made, digits in ((after, 1e-4), (in_float16(after), 0.03)):
        if digits < 0.01 or most < 1000:  # beyond, sums leave float16
            run = Executable(to_onnx(made, name="chain")).run({"x": x})["y"]
            np.testing.assert_allclose(run, before, atol=digits * most)
