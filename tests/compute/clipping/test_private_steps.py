"""Private gradients with noise make a step; what has no gradient of one example is refused."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from collections.abc import Mapping
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from coterie.compute import nn, ops, optim, scan
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.clipping.transform import clipped_grad, noised_mean
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes import optimise
from coterie.compute.runtime.executable import Executable
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.errors import DTypeError, InputError, ShapeError
from tests.compute.clipping.models import BY_NAME, Model, assert_agree, clip_of, floats, ids, loop

MLP = BY_NAME["mlp"]


@pytest.mark.parametrize("rule", [optim.sgd(0.1), optim.sgd(0.1, momentum=0.9), optim.adam(0.01)], ids=lambda o: o.name)
def test_optimizers_take_private_gradients_and_an_inactive_step_changes_no_bit(rule: optim.Optimizer) -> None:
    params = MLP.weights()
    rng = np.random.default_rng(0)
    noise = {name: whole(rng, *value.shape) for name, value in params.items()}
    hyper = {name: Array(np.array([value], np.float32)) for name, value in rule.hyper.items()}
    state = rule.init(params)
    mean = noised_mean(clip_of(MLP, 0.5).gradient, noise, grid=0.5**12, count=MLP.size)
    for active in (1.0, 0.0):
        moved, after = rule.update(mean, state, params, hyper, Array(np.array([active], np.float32)))
        same = [np.array_equal(moved[name].numpy(), params[name].numpy()) for name in params]
        same += [np.array_equal(after[name].numpy(), state[name].numpy()) for name in state]
        assert not any(same) if active else all(same)


def test_noise_is_added_in_its_steps_even_to_an_empty_batch() -> None:
    def fn(params: Mapping[str, Array], x: Array) -> Array:
        return xp.sum(x @ params["w"], axis=1)

    weight, grid, count, shape = np.zeros(4, np.float32), 0.5**10, 8, (200, 150)
    noise = {"w": whole(np.random.default_rng(5), *shape)}
    clipped = clipped_grad(fn, 0.5)({"w": xp.zeros(shape)}, Array(floats(4, 200)), sample_weight=weight)
    step = Array(np.array([grid], np.float32))
    mean = noised_mean(clipped.gradient, noise, grid=step, count=count)["w"].numpy()
    np.testing.assert_array_equal(mean, noise["w"].numpy().astype(np.float32) * np.float32(grid / count))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_which_noised_sums_are_possible_does_not_depend_on_the_sum(dtype: str) -> None:
    """A sum lies anywhere between two steps, beyond all of them, or nowhere: what is released is a whole number."""
    rng, grid = np.random.default_rng(3), 0.5**20
    total = np.concatenate([rng.normal(size=4000) * 10.0 ** rng.integers(-30, 3, 4000), [0.0, -0.0, 1e30, -1e30]])
    noise = whole(rng, total.size)
    found = noised_mean([Array(total.astype(dtype))], [noise], grid=grid, count=1.0)[0].numpy().astype(np.float64)
    steps = found / grid
    np.testing.assert_array_equal(steps, np.rint(steps))
    exact = np.clip(np.floor(total.astype(dtype).astype(np.float64) / grid), -(2.0**30), 2.0**30) + noise.numpy()
    np.testing.assert_array_equal(steps, exact.astype(dtype).astype(np.float64))
    assert np.abs(steps[:4000] * grid - total[:4000] - noise.numpy()[:4000] * grid).max() <= grid * 64


def whole(rng: np.random.Generator, *shape: int) -> Array:
    """Noise in whole numbers."""
    return Array(np.rint(rng.normal(size=shape) * 1000).astype(np.int32))


def test_the_whole_private_step_in_one_graph_draws_nothing_itself() -> None:
    params = MLP.weights()
    specs = {f"p/{name}": TensorSpec(value.shape) for name, value in params.items()}
    specs |= {"x": TensorSpec(MLP.batch[0].shape), "y": TensorSpec(MLP.batch[1].shape, "int32")}
    specs |= {"lr": TensorSpec((1,))}
    numbers = {f"random/{name}": TensorSpec(value.shape, "int32") for name, value in params.items()}
    grid = 0.5**12

    def step(inputs: GraphInputs) -> dict[str, Array]:
        given = {name: inputs[f"p/{name}"] for name in params}
        total = clipped_grad(MLP.fn, 0.3)(given, inputs["x"], inputs["y"]).gradient
        noise = {name: inputs[f"random/{name}"] for name in params}
        mean = noised_mean(total, noise, grid=grid, count=MLP.size)
        return {f"next/{name}": given[name] - inputs["lr"] * g for name, g in mean.items()}

    graph = optimise(trace_named(step, specs | numbers))
    rng = np.random.default_rng(2)
    given = {name: rng.normal(size=spec.shape).astype(np.float32) for name, spec in specs.items()}
    given |= {f"p/{name}": value.numpy() for name, value in params.items()}
    given |= {"x": MLP.batch[0], "y": MLP.batch[1], "lr": np.array([0.2], np.float32)}
    given |= {name: whole(rng, *spec.shape).numpy() for name, spec in numbers.items()}
    ran = Executable(to_onnx(graph, name="step")).run(given)
    total = loop(MLP, 0.3, np.ones(MLP.size, np.float32))[0]
    for name, value in total.items():
        mean = (value + grid * given[f"random/{name}"]) / MLP.size
        np.testing.assert_allclose(ran[f"next/{name}"], given[f"p/{name}"] - 0.2 * mean, rtol=1e-4, atol=2e-5)


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
        (lambda p: noised_mean(p, {"a": X}, grid=1.0, count=4), InputError, "structure"),
        (lambda p: noised_mean([X], [Y], grid=1.0, count=4), ShapeError, "not shaped like"),
        (lambda p: noised_mean([X], [X], grid=1.0, count=4), DTypeError, "no int32"),
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
    assert_agree(
        clipped.gradient,
        loop(Model("", fn, {}, [X.numpy()], {n: a.numpy() for n, a in NORMED.items()}), 1.0, np.ones(4, np.float32))[0],
    )


# Rows of ids are always finite.
@pytest.mark.parametrize("name", [name for name, model in BY_NAME.items() if model.batch[0].dtype == np.float32])
@pytest.mark.parametrize("bad", [nan, inf, -inf, 1e30])
def test_an_example_without_a_finite_gradient_counts_as_zeros_and_spoils_no_other(name: str, bad: float) -> None:
    model = BY_NAME[name]
    rows = [np.array(row) for row in model.batch]
    rows[0][1] = bad
    params = model.weights()
    found = clipped_grad(model.fn, 0.5, nonfinite="zero")(params, *(Array(row) for row in rows)).gradient
    others = [np.delete(row, 1, axis=0) for row in model.batch]
    alone = clipped_grad(model.fn, 0.5, nonfinite="zero")(params, *(Array(row) for row in rows_of(rows, 1))).gradient
    wanted = clipped_grad(model.fn, 0.5)(params, *(Array(row) for row in others)).gradient
    for key in params:
        one = alone[key].numpy()
        assert np.isfinite(one).all()
        np.testing.assert_allclose(found[key].numpy(), wanted[key].numpy() + one, rtol=1e-4, atol=1e-5)
    assert np.sqrt(sum(float(np.sum(one.numpy() ** 2)) for one in alone.values())) <= 0.5 * (1 + 1e-5)


@pytest.mark.parametrize("bad", [-(2**31), -1, 9, 77, 2**31 - 1])
def test_an_id_outside_its_table_moves_no_more_than_its_own_example(bad: int) -> None:
    """The table is read, looked along and added to, once inside a loop over positions."""

    def fn(params: Mapping[str, Array], x: Array) -> Array:
        read = xp.sum(ops.embedding(params["table"], x) ** 2, axis=(1, 2))
        along = xp.take_along_axis(xp.broadcast_to(params["bias"], (x.shape[0], 9)), x, axis=1)
        put = ops.scatter_add(xp.zeros((9,)), x[0], params["bias"][:3])
        _, found = scan(lambda held, column: (held, ops.embedding(params["table"], column)), xp.zeros(()), x.T)
        return read + xp.sum(along, axis=1) ** 2 + xp.sum(put**2) + xp.sum(found**2)

    params = {"table": Array(floats(9, 4)), "bias": Array(floats(9))}
    x = ids(9, 4, 3)
    x[1, 2] = bad
    specs = {f"p/{name}": TensorSpec(value.shape) for name, value in params.items()} | {
        "x": TensorSpec((4, 3), "int32")
    }
    specs["weight"] = TensorSpec((4,))

    def step(inputs: GraphInputs) -> dict[str, Array]:
        given = {name: inputs[f"p/{name}"] for name in params}
        return clipped_grad(fn, 0.5, nonfinite="zero")(given, inputs["x"], sample_weight=inputs["weight"]).gradient

    ran = Executable(to_onnx(optimise(trace_named(step, specs)), name="step"))
    given = {f"p/{name}": value.numpy() for name, value in params.items()} | {"x": x}
    weights = np.ones(4, np.float32)
    everyone = ran.run(given | {"weight": weights})
    others = ran.run(given | {"weight": weights * np.array([1, 0, 1, 1], np.float32)})
    moved = np.sqrt(sum(float(np.sum((everyone[name] - others[name]) ** 2)) for name in params))
    assert moved <= 0.5 * (1 + 1e-5)
    assert all(np.any(others[name]) for name in params)


def rows_of(rows: list[Any], place: int) -> list[Any]:
    return [row[place : place + 1] for row in rows]
