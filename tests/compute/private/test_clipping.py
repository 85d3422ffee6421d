"""Per-example clipping is the loop over examples, bounds what an example can do, and needs no gradient for each one.

(B7: a gradient for each example by vmap is the loop of gradients.)
"""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from collections.abc import Mapping
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import nn, ops, optim
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.batching import vmap
from coterie.compute.interpret import interpret
from coterie.compute.ir import Graph, NDArray
from coterie.compute.jit import jit
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.private.clipping import Clip, Clipped, clipped_grad, noised_mean
from coterie.compute.runtime.executable import Executable
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.errors import DTypeError, InputError, ShapeError
from tests.compute.private.models import MODELS, Model, floats, ids, loop, of_module

BY_NAME = {model.name: model for model in MODELS}
MLP = BY_NAME["mlp"]
each = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)


def clip_of(model: Model, clip: Clip, weight: NDArray | None = None, microbatch: int = 1) -> Clipped:
    arrays = [Array(array) for array in model.batch]
    return clipped_grad(model.fn, clip, microbatch=microbatch)(model.weights(), *arrays, sample_weight=weight)


def agree(found: Mapping[str, Array], expected: Mapping[str, NDArray]) -> None:
    assert list(found) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].numpy(), value, rtol=2e-4, atol=2e-6, err_msg=name)


def middle(model: Model) -> float:
    """A norm that some examples exceed and some do not."""
    return float(np.median(loop(model, 1.0, np.ones(model.size, np.float32))[1])) + 1e-6


@each
def test_clipping_is_the_loop_over_examples(model: Model) -> None:
    weight = np.ones(model.size, np.float32)
    clip = middle(model)
    total, norms = loop(model, clip, weight)
    clipped = clip_of(model, clip)
    agree(clipped.gradient, total)
    np.testing.assert_allclose(clipped.norms.numpy(), norms, rtol=2e-4)
    assert clipped.clipped.item() == (norms > clip).sum() > 0
    losses = model.fn(model.weights(), *(Array(array) for array in model.batch))
    np.testing.assert_allclose(clipped.losses.numpy(), losses.numpy(), rtol=1e-4, atol=1e-6)


@each
def test_rows_of_weight_zero_add_nothing(model: Model) -> None:
    weight = np.ones(model.size, np.float32)
    weight[1:] = 0
    clip = middle(model)
    clipped = clip_of(model, clip, weight)
    agree(clipped.gradient, loop(model, clip, weight)[0])
    assert (clipped.norms.numpy()[1:] == 0).all()


@each
def test_an_empty_batch_gives_zeros(model: Model) -> None:
    clipped = clip_of(model, 0.5, np.zeros(model.size, np.float32))
    for value in clipped.gradient.values():
        np.testing.assert_array_equal(value.numpy(), 0)
    assert clipped.clipped.item() == 0


@pytest.mark.parametrize("microbatch", [2, 3, 6])
@pytest.mark.parametrize("name", ["mlp", "linear on sequences", "conv, groups", "tied", "unrolled", "gru in a loop"])
def test_microbatches_share_one_clipped_gradient(name: str, microbatch: int) -> None:
    model = BY_NAME[name]
    weight = np.array([1, 0.5, 0, 0, 1, 0], np.float32)
    norms = loop(model, 1.0, weight, microbatch)[1]
    clip = float(np.median(norms)) * 0.9
    clipped = clip_of(model, clip, weight, microbatch)
    agree(clipped.gradient, loop(model, clip, weight, microbatch)[0])
    np.testing.assert_allclose(clipped.norms.numpy(), norms, rtol=2e-4)


@pytest.mark.parametrize("name", ["mlp", "transformer", "conv", "unused"])
def test_each_parameter_can_have_a_norm_of_its_own(name: str) -> None:
    model = BY_NAME[name]
    weight = np.ones(model.size, np.float32)
    clip = {key: 0.02 * (1 + i) for i, key in enumerate(sorted(model.weights()))}
    total, norms = loop(model, clip, weight)
    clipped = clip_of(model, clip)
    agree(clipped.gradient, total)
    for column, (key, limit) in enumerate(clip.items()):
        np.testing.assert_allclose(clipped.norms[key].numpy(), norms[:, column], rtol=2e-4, atol=1e-7)
        assert clipped.clipped[key].item() == (norms[:, column] > limit).sum()


@pytest.mark.capability("B7")
@each
def test_gradients_by_vmap_are_a_loop_of_gradients(model: Model) -> None:
    def of_one(params: dict[str, Array], *example: Array) -> Array:
        return xp.sum(model.fn(params, *(xp.expand_dims(array, 0) for array in example)))

    params, batch = model.weights(), [Array(array) for array in model.batch]
    mapped = vmap(grad(of_one), (None, *(0 for _ in batch)))(params, *batch)
    for i in range(model.size):
        for name, value in grad(of_one)(params, *(array[i] for array in batch)).items():
            np.testing.assert_allclose(mapped[name].numpy()[i], value.numpy(), rtol=2e-4, atol=2e-6)


def step_graph(model: Model, *, optimiser: bool = True) -> Graph:
    """Parameters, batch, weights and the norm are inputs; a step of SGD the output."""
    params = model.weights()
    specs = {f"p/{name}": TensorSpec(value.shape) for name, value in params.items()}
    specs |= {f"b/{i}": TensorSpec(array.shape, array.dtype.name) for i, array in enumerate(model.batch)}
    specs |= {"w": TensorSpec((model.size,)), "clip": TensorSpec((1,)), "lr": TensorSpec((1,))}

    def step(inputs: GraphInputs) -> dict[str, Array]:
        given = {name: inputs[f"p/{name}"] for name in params}
        batch = [inputs[f"b/{i}"] for i in range(len(model.batch))]
        clipped = clipped_grad(model.fn, inputs["clip"])(given, *batch, sample_weight=inputs["w"])
        moved = {f"next/{name}": given[name] - inputs["lr"] * g for name, g in clipped.gradient.items() if g.ndim}
        return moved | {"norms": clipped.norms, "losses": clipped.losses, "clipped": clipped.clipped}

    graph = trace_named(step, specs)
    return optimise(graph) if optimiser else graph


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
    ran = Executable(to_onnx(graph, name="step")).run(given)
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
        (nn.models.mlp([50, 40, 30]), floats(16, 50)),
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
    agree(clip_of(model, 0.3).gradient, loop(model, 0.3, np.ones(8, np.float32))[0])


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
    monkeypatch.setattr("coterie.compute.private.norms.KEPT", kept - 1)
    assert largest(step_graph(model)) < kept
    agree(clip_of(model, 0.3).gradient, loop(model, 0.3, np.ones(8, np.float32))[0])


@pytest.mark.parametrize("name", ["rows from the end", "picked"])
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
    graph = step_graph(of_module("", nn.models.mlp([50, 40, 30]), floats(16, 50), ids(30, 16)))
    for layer, shape in (("0", (40, 50)), ("2", (30, 40))):
        update = graph.producers()[graph.outputs[f"next/{layer}.weight"]]
        assert update.primitive == "gemm"
        assert update.inputs[2] is graph.inputs[f"p/{layer}.weight"]
        made = [node for node in graph.nodes if node.output.type.shape in (shape, shape[::-1])]
        assert [node.primitive for node in made] == ["gemm"]


def test_a_step_costs_few_nodes_more_than_the_plain_one() -> None:
    model = of_module("", nn.models.mlp([50, 40, 30]), floats(16, 50), ids(30, 16))
    specs = {f"p/{name}": TensorSpec(value.shape) for name, value in model.weights().items()}
    specs |= {"x": TensorSpec((16, 50)), "y": TensorSpec((16,), "int32"), "w": TensorSpec((16,))}

    def plain(inputs: GraphInputs) -> dict[str, Array]:
        given = {name.removeprefix("p/"): inputs[name] for name in specs if name.startswith("p/")}
        gradient = grad(lambda p: xp.sum(model.fn(p, inputs["x"], inputs["y"]) * inputs["w"]))(given)
        return {f"next/{name}": given[name] - 0.1 * g for name, g in gradient.items()}

    def products(graph: Graph) -> int:
        return sum(node.primitive in ("matmul", "gemm") and max(node.output.type.shape) > 1 for node in graph.nodes)

    biases = 2  # the sum of a bias's gradients is a product with the scales
    assert products(step_graph(model)) == products(optimise(trace_named(plain, specs))) + biases


vectors = st.integers(0, 2**32 - 1)


@settings(max_examples=12, deadline=None)
@given(seed=vectors, name=st.sampled_from(["mlp", "tied", "conv, groups", "unrolled"]), scale=st.floats(1e-3, 1e3))
def test_what_one_example_adds_is_no_longer_than_the_norm(seed: int, name: str, scale: float) -> None:
    model = BY_NAME[name]
    rng = np.random.default_rng(seed)
    clip = float(rng.uniform(1e-3, 2.0))
    params = {name: value * scale for name, value in model.weights().items()}
    weight = np.zeros(model.size, np.float32)
    weight[rng.integers(model.size)] = rng.uniform(0, 10)
    clipped = clipped_grad(model.fn, clip)(params, *map(Array, model.batch), sample_weight=weight)
    assert length(clipped.gradient) <= clip * (1 + 1e-4)


def length(gradient: Mapping[str, Array]) -> float:
    return float(np.sqrt(sum((np.float64(value.numpy()) ** 2).sum() for value in gradient.values())))


@settings(max_examples=12, deadline=None)
@given(seed=vectors, name=st.sampled_from(["mlp", "linear on sequences", "conv"]))
def test_replacing_an_example_moves_the_sum_by_at_most_twice_the_norm(seed: int, name: str) -> None:
    model = BY_NAME[name]
    rng = np.random.default_rng(seed)
    clip, place = float(rng.uniform(1e-3, 2.0)), int(rng.integers(model.size))
    x = model.batch[0].copy()
    x[place] = 10.0 * rng.normal(size=x[place].shape)
    function = clipped_grad(model.fn, clip)
    rest = [Array(array) for array in model.batch[1:]]
    before = function(model.weights(), Array(model.batch[0]), *rest).gradient
    after = function(model.weights(), Array(x), *rest).gradient
    moved = {key: before[key] - after[key] for key in before}
    assert length(moved) <= 2 * clip * (1 + 1e-4)
    weight = np.ones(model.size, np.float32)
    weight[place] = 0
    without = function(model.weights(), Array(model.batch[0]), *rest, sample_weight=weight).gradient
    assert length({key: before[key] - without[key] for key in before}) <= clip * (1 + 1e-4)


@settings(max_examples=12, deadline=None)
@given(seed=vectors, kind=st.sampled_from(["linear", "conv"]), large=st.sampled_from([1e1, 1e3, 1e5]))
def test_an_example_whose_parts_cancel_does_not_pass_the_bound(seed: int, kind: str, large: float) -> None:
    rng = np.random.default_rng(seed)
    signs = np.tile(np.array([1.0, -1.0], np.float32), 4)
    shape = (60, 60) if kind == "linear" else (90, 30, 1, 1)
    columns = shape[1]
    common = large * rng.normal(size=(1, 1, columns))
    x = (common + rng.normal(size=(1, 8, columns))).astype(np.float32)
    ray = rng.normal(size=shape[0]).astype(np.float32)

    def fn(params: Mapping[str, Array], x: Array) -> Array:
        if kind == "linear":
            y = x @ xp.matrix_transpose(params["w"])
        else:
            images = xp.reshape(xp.permute_dims(x, (0, 2, 1)), (-1, columns, 2, 4))
            y = xp.permute_dims(xp.reshape(ops.conv2d(images, params["w"]), (-1, shape[0], 8)), (0, 2, 1))
        return xp.sum(xp.sum(y * ray, axis=2) * signs, axis=1)

    clipped = clipped_grad(fn, 1.0)({"w": xp.zeros(shape)}, Array(x))
    assert length(clipped.gradient) <= 1.01


def test_clipping_works_in_compiled_functions_and_with_arrays_held_from_outside() -> None:
    base, x, y = MLP.weights(), Array(MLP.batch[0]), Array(MLP.batch[1])

    @jit
    def proximal(params: dict[str, Array], factor: Array, clip: Array, x: Array, y: Array) -> dict[str, Array]:
        scaled = {name: value * factor for name, value in base.items()}  # traced, and the same for every example

        def fn(params: Mapping[str, Array], x: Array, y: Array) -> Array:
            near = sum((xp.sum((params[name] - scaled[name]) ** 2) for name in scaled), start=xp.zeros(()))
            return MLP.fn(params, x, y) + 0.1 * near

        return clipped_grad(fn, clip)(params, x, y).gradient

    def fn(params: Mapping[str, Array], x: Array, y: Array) -> Array:
        near = sum((xp.sum((params[name] - base[name] * 0.5) ** 2) for name in base), start=xp.zeros(()))
        return MLP.fn(params, x, y) + 0.1 * near

    half = Array(np.asarray(0.5, np.float32))
    model = Model("", fn, {}, MLP.batch, {name: value.numpy() for name, value in base.items()})
    agree(proximal(base, half, half, x, y), loop(model, 0.5, np.ones(MLP.size, np.float32))[0])


def test_a_zero_gradient_has_finite_further_gradients() -> None:
    def fn(params: Mapping[str, Array], x: Array) -> Array:
        return xp.sum(x @ params["w"], axis=1) ** 2

    def objective(params: dict[str, Array]) -> Array:
        clipped = clipped_grad(fn, 1.0)(params, Array(np.zeros((3, 2), np.float32)))
        return xp.sum(clipped.gradient["w"] ** 2)

    second = grad(objective)({"w": Array(np.ones((2, 2), np.float32))})
    np.testing.assert_array_equal(second["w"].numpy(), 0)


def test_the_gradient_of_a_clipped_gradient_is_that_of_the_definition() -> None:
    rng = np.random.default_rng(1)
    x, y = Array(rng.normal(size=(4, 3))), Array(rng.normal(size=(4, 2)))
    w = Array(rng.normal(size=(3, 2)))

    def fn(params: Array, x: Array, y: Array) -> Array:
        return xp.sum((xp.tanh(x @ params) - y) ** 2, axis=1)

    def through(params: Array) -> Array:
        return xp.sum(xp.sin(clipped_grad(fn, 1.5)(params, x, y).gradient))

    def defined(params: Array) -> Array:
        def one(params: Array, x: Array, y: Array) -> Array:
            return fn(params, xp.expand_dims(x, 0), xp.expand_dims(y, 0))[0]

        each = vmap(grad(one), (None, 0, 0))(params, x, y)
        norms = xp.sqrt(xp.sum(each * each, axis=(1, 2), keepdims=True))
        return xp.sum(xp.sin(xp.sum(each * xp.minimum(1.0, 1.5 / norms), axis=0)))

    np.testing.assert_allclose(through(w).numpy(), defined(w).numpy(), rtol=1e-10)
    np.testing.assert_allclose(grad(through)(w).numpy(), grad(defined)(w).numpy(), rtol=1e-8)


@pytest.mark.parametrize("rule", [optim.sgd(0.1), optim.sgd(0.1, momentum=0.9), optim.adam(0.01)], ids=lambda o: o.name)
def test_optimizers_take_private_gradients_and_an_inactive_step_changes_no_bit(rule: optim.Optimizer) -> None:
    params = MLP.weights()
    rng = np.random.default_rng(0)
    noise = {name: Array(rng.normal(size=value.shape).astype(np.float32)) for name, value in params.items()}
    hyper = {name: Array(np.array([value], np.float32)) for name, value in rule.hyper.items()}
    state = rule.init(params)
    mean = noised_mean(clip_of(MLP, 0.5).gradient, noise, scale=0.4, count=MLP.size)
    for active in (1.0, 0.0):
        moved, after = rule.update(mean, state, params, hyper, Array(np.array([active], np.float32)))
        same = [np.array_equal(moved[name].numpy(), params[name].numpy()) for name in params]
        same += [np.array_equal(after[name].numpy(), state[name].numpy()) for name in state]
        assert not any(same) if active else all(same)


def test_noise_is_added_with_its_scale_even_to_an_empty_batch() -> None:
    def fn(params: Mapping[str, Array], x: Array) -> Array:
        return xp.sum(x @ params["w"], axis=1)

    weight, sigma, clip, count = np.zeros(4, np.float32), 0.8, 0.5, 8
    shape = (200, 150)
    noise = {"w": Array(np.random.default_rng(5).normal(size=shape).astype(np.float32))}
    clipped = clipped_grad(fn, clip)({"w": xp.zeros(shape)}, Array(floats(4, 200)), sample_weight=weight)
    scale = Array(np.array([sigma * clip], np.float32))
    mean = noised_mean(clipped.gradient, noise, scale=scale, count=count)["w"].numpy()
    np.testing.assert_allclose(mean, noise["w"].numpy() * (sigma * clip / count), rtol=1e-6)
    assert abs(mean.std() / (sigma * clip / count) - 1) < 0.02
    assert abs(mean.mean()) < 4 * sigma * clip / count / np.sqrt(mean.size)


def test_the_whole_private_step_in_one_graph_draws_nothing_itself() -> None:
    params = MLP.weights()
    specs = {f"p/{name}": TensorSpec(value.shape) for name, value in params.items()}
    specs |= {f"random/{name}": TensorSpec(value.shape) for name, value in params.items()}
    specs |= {"x": TensorSpec(MLP.batch[0].shape), "y": TensorSpec(MLP.batch[1].shape, "int32")}
    specs |= {"scale": TensorSpec((1,)), "lr": TensorSpec((1,))}

    def step(inputs: GraphInputs) -> dict[str, Array]:
        given = {name: inputs[f"p/{name}"] for name in params}
        total = clipped_grad(MLP.fn, 0.3)(given, inputs["x"], inputs["y"]).gradient
        noise = {name: inputs[f"random/{name}"] for name in params}
        mean = noised_mean(total, noise, scale=inputs["scale"], count=MLP.size)
        return {f"next/{name}": given[name] - inputs["lr"] * g for name, g in mean.items()}

    graph = optimise(trace_named(step, specs))
    rng = np.random.default_rng(2)
    given = {name: rng.normal(size=spec.shape).astype(np.float32) for name, spec in specs.items()}
    given |= {f"p/{name}": value.numpy() for name, value in params.items()}
    given |= {"x": MLP.batch[0], "y": MLP.batch[1], "lr": np.array([0.2], np.float32)}
    given["scale"] = np.array([0.7], np.float32)
    update = [node.primitive for node in graph.nodes if node.output.type.shape == (8, 5)]
    assert sorted(update) == ["gemm", "multiply", "subtract"]  # with the noise; neither the sum nor the mean has a pass
    ran = Executable(to_onnx(graph, name="step")).run(given)
    total = loop(MLP, 0.3, np.ones(MLP.size, np.float32))[0]
    for name, value in total.items():
        mean = (value + 0.7 * given[f"random/{name}"]) / MLP.size
        np.testing.assert_allclose(ran[f"next/{name}"], given[f"p/{name}"] - 0.2 * mean, rtol=1e-4, atol=1e-6)


X, Y = Array(floats(4, 5)), Array(ids(3, 4))


def batch_normalised(params: Mapping[str, Array], x: Array, y: Array) -> Array:
    layer = nn.BatchNorm1d(5)
    buffers = {"running_mean": xp.zeros((5,)), "running_var": xp.ones((5,))}
    return xp.sum(layer({**params, **buffers}, x, nn.train()), axis=1)


NORMED = {"weight": xp.ones((5,)), "bias": xp.zeros((5,))}


@pytest.mark.parametrize(
    ("run", "kind", "message"),
    [
        (lambda p: clipped_grad(batch_normalised, 1.0)(NORMED, X, Y), InputError, "BatchNorm1d.*GroupNorm"),
        (lambda p: clipped_grad(MLP.fn, 0.0), InputError, "above 0"),
        (lambda p: clipped_grad(MLP.fn, inf), InputError, "finite"),
        (lambda p: clipped_grad(MLP.fn, nan), InputError, "finite"),
        (lambda p: clipped_grad(MLP.fn, {"a": -1.0}), InputError, "a is -1.0"),
        (lambda p: clipped_grad(MLP.fn, {"a": 1.0})(p, X, Y), InputError, "names"),
        (lambda p: clipped_grad(MLP.fn, Array(np.ones(3, np.float32)))(p, X, Y), ShapeError, "one number"),
        (lambda p: clipped_grad(MLP.fn, 1.0, microbatch=3)(p, X, Y), InputError, "4 examples.*microbatches of 3"),
        (lambda p: clipped_grad(MLP.fn, 1.0)(p, X[:0], Y[:0]), InputError, "0 examples"),
        (lambda p: clipped_grad(MLP.fn, 1.0, microbatch=0)(p, X, Y), InputError, "microbatches of 0"),
        (lambda p: clipped_grad(MLP.fn, 1.0)(p, X, Y[:2]), ShapeError, "argument 0: 4, argument 1: 2"),
        (
            lambda p: clipped_grad(MLP.fn, 1.0)(p, X, Array(np.asarray(1.0, np.float32))),
            ShapeError,
            "no axis of examples",
        ),
        (lambda p: clipped_grad(MLP.fn, 1.0)(p), ShapeError, "there are none"),
        (lambda p: clipped_grad(MLP.fn, 1.0)({}, X, Y), InputError, "no parameters"),
        (lambda p: clipped_grad(lambda p, x, y: xp.sum(MLP.fn(p, x, y)), 1.0)(p, X, Y), ShapeError, "one float for"),
        (lambda p: clipped_grad(MLP.fn, 1.0)(p, X, Y, sample_weight=np.ones(3, np.float32)), ShapeError, r"\[4\]"),
        (lambda p: clipped_grad(MLP.fn, 1.0)(p, X, Y, sample_weight=np.ones(4, np.int32)), DTypeError, "float"),
        (lambda p: clipped_grad(lambda p, x: xp.sum(x, axis=1), 1.0)({"a": Y}, X), DTypeError, "only floats"),
        (lambda p: noised_mean(p, {"a": X}, scale=1.0, count=4), InputError, "structure"),
        (lambda p: noised_mean([X], [Y], scale=1.0, count=4), ShapeError, "not shaped like"),
    ],
)
def test_what_cannot_be_clipped_is_refused_by_name(run: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        run(MLP.weights())


def test_batch_norm_clips_outside_training() -> None:
    def fn(params: Mapping[str, Array], x: Array) -> Array:
        layer = nn.BatchNorm1d(5)
        buffers = {"running_mean": xp.zeros((5,)), "running_var": xp.ones((5,))}
        return xp.sum(layer({**params, **buffers}, x) ** 2, axis=1)

    clipped = clipped_grad(fn, 1.0)(NORMED, X)
    agree(
        clipped.gradient,
        loop(Model("", fn, {}, [X.numpy()], {n: a.numpy() for n, a in NORMED.items()}), 1.0, np.ones(4, np.float32))[0],
    )
