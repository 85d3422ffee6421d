"""Per-example clipping is the loop over examples, and bounds what an example can do.

(B7: a gradient for each example by vmap is the loop of gradients.)
"""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.batching import vmap
from coterie.compute.clipping.transform import clipped_grad, noised_mean
from coterie.compute.interactive.jit import jit
from coterie.errors import InputError, ShapeError
from tests.compute.clipping.models import BY_NAME, MODELS, Model, assert_agree, clip_of, length, loop

MLP = BY_NAME["mlp"]
each = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)


def middle(model: Model) -> float:
    """A norm that some examples exceed and some do not."""
    return float(np.median(loop(model, 1.0, np.ones(model.size, np.float32))[1])) + 1e-6


UNDERFLOW = 1e-15
"""More than what norms from factors add for squares that underflow."""


@each
def test_clipping_is_the_loop_over_examples(model: Model) -> None:
    weight = np.ones(model.size, np.float32)
    clip = middle(model)
    total, norms = loop(model, clip, weight)
    clipped = clip_of(model, clip)
    assert_agree(clipped.gradient, total)
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
    assert_agree(clipped.gradient, loop(model, clip, weight)[0])
    assert (clipped.norms.numpy()[1:] < UNDERFLOW).all()


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
    assert_agree(clipped.gradient, loop(model, clip, weight, microbatch)[0])
    np.testing.assert_allclose(clipped.norms.numpy(), norms, rtol=2e-4, atol=UNDERFLOW)


@pytest.mark.parametrize("name", ["mlp", "transformer", "conv", "unused"])
def test_each_parameter_can_have_a_norm_of_its_own(name: str) -> None:
    model = BY_NAME[name]
    weight = np.ones(model.size, np.float32)
    clip = {key: 0.02 * (1 + i) for i, key in enumerate(sorted(model.weights()))}
    total, norms = loop(model, clip, weight)
    clipped = clip_of(model, clip)
    assert_agree(clipped.gradient, total)
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


vectors = st.integers(0, 2**32 - 1)


@settings(max_examples=12)
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


@settings(max_examples=12)
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


@settings(max_examples=12)
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
    assert_agree(proximal(base, half, half, x, y), loop(model, 0.5, np.ones(MLP.size, np.float32))[0])


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


@pytest.mark.parametrize("clip", [1e18, 1e19, 1e30, 3e38])
def test_a_norm_whose_square_overflows_clips_nothing(clip: float) -> None:
    model = BY_NAME["mlp"]
    total, norms = loop(model, clip, np.ones(model.size, np.float32))
    clipped = clip_of(model, clip)
    assert_agree(clipped.gradient, total)
    np.testing.assert_allclose(clipped.norms.numpy(), norms, rtol=2e-4)
    assert clipped.clipped.item() == 0


@pytest.mark.parametrize(("clip", "scale"), [(1e-26, 1e-25), (1e-30, 1.0), (1e-21, 1e-20)])
def test_a_norm_whose_square_underflows_is_a_bound_all_the_same(clip: float, scale: float) -> None:
    model = BY_NAME["mlp"]
    weight = np.zeros(model.size, np.float32)
    weight[0] = scale
    assert length(clip_of(model, clip, weight).gradient) <= clip * (1 + 1e-4)


FACTORS = {"one place": (1, 512), "many places": (16, 64)}


@pytest.mark.parametrize("kind", [*FACTORS, "convolution"])
def test_factors_of_which_one_underflows_when_squared_do_not_pass_the_bound(kind: str) -> None:
    """Weights made for it can hold what comes to a layer near the smallest square, and what goes back near the largest:
    the squares of the one are zeros, and the gradient is longer than the bound all the same.
    """
    clip, tiny, large = 1e-3, np.float32(2.5e-23), 8e17
    if kind == "convolution":
        x = np.full((1, 64, 4, 4), tiny)
        w = np.zeros((64, 64, 1, 1), np.float32)

        def product(weight: Array, row: Array) -> Array:
            return ops.conv2d(row, weight)
    else:
        places, size = FACTORS[kind]
        x = np.full((1, places, size), tiny)
        w = np.zeros((size, size), np.float32)

        def product(weight: Array, row: Array) -> Array:
            return row @ weight

    def loss(params: Mapping[str, Array], row: Array) -> Array:
        return xp.reshape(xp.sum(product(params["w"], row) * large), (1,))

    params = {"w": Array(w)}
    true = length(grad(lambda given: xp.sum(loss(given, Array(x))))(params))
    found = clipped_grad(loss, clip, nonfinite="zero")(params, x)
    assert true > 2 * clip
    assert length(found.gradient) <= clip * 1.001


def test_parameters_of_different_precision_share_one_norm() -> None:
    def losses(params: dict[str, Array], x: Array) -> Array:
        return xp.sum(xp.astype(x @ params["single"], "float64") * params["double"], axis=1)

    x = np.random.default_rng(3).normal(size=(4, 2)).astype(np.float32)
    params = {"single": Array(np.eye(2, dtype=np.float32)), "double": Array(np.ones(2))}
    found = clipped_grad(losses, 0.5)(params, x).gradient
    rows = vmap(grad(lambda params, row: losses(params, row[None])[0]), in_axes=(None, 0))(params, x)
    each = [np.concatenate([rows[name].numpy()[i].ravel() for name in sorted(rows)]) for i in range(4)]
    expected = sum(row * min(1.0, 0.5 / np.linalg.norm(row)) for row in each)
    np.testing.assert_allclose(np.concatenate([found[name].numpy().ravel() for name in sorted(found)]), expected, 1e-5)
    assert [found[name].type.dtype for name in ("single", "double")] == ["float32", "float64"]


@pytest.mark.parametrize("clip", [0, -1.0, np.inf, np.nan, np.float32(-1), np.zeros((1,), np.float32)])
def test_a_known_clip_that_bounds_nothing_is_refused(clip: float) -> None:
    for limit in (clip, {"w": clip}):
        with pytest.raises(InputError, match="a norm to clip to is above 0 and finite"):
            clipped_grad(lambda params, x: x @ params["w"], limit)


def test_noise_of_no_size_and_means_over_nothing_are_refused() -> None:
    tree, noise = {"w": np.ones(2, np.float32)}, {"w": np.ones(2, np.int32)}
    for grid, count in ((1.0, 0), (1.0, -3), (-1.0, 3), (np.nan, 3), (1.0, np.inf), (0.3, 3), (0.0, 3)):
        with pytest.raises(InputError, match="noised_mean: the (grid|count)"):
            noised_mean(tree, noise, grid=grid, count=count)


@pytest.mark.parametrize("returned", [lambda x: (x[:, 0], x), lambda x: {"loss": x[:, 0]}, lambda x: 0.0, lambda x: x])
def test_what_is_no_loss_for_each_example_is_refused(returned: Any) -> None:
    with pytest.raises(ShapeError, match=r"fn must give one float for each of 1 examples, \[1\]"):
        clipped_grad(lambda params, x: returned(x * params), 1.0)(np.ones(2, np.float32), np.ones((3, 2), np.float32))
