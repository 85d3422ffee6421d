"""BatchNorm and its running statistics: equal to the formulas and to PyTorch; rows without weight and batches without
weight change nothing; a model's buffers come back by name. And the touched rows of an embedding table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from coterie.compute import nn, optim
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.ir import NDArray
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.errors import InputError, ShapeError
from tests.compute.models.torch_answers import answer

Batched = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
INPUTS: dict[str, tuple[Batched, tuple[int, ...]]] = {
    "rows": (nn.BatchNorm1d(3), (5, 3)),
    "sequences": (nn.BatchNorm1d(3), (5, 3, 4)),
    "images": (nn.BatchNorm2d(3, epsilon=1e-3, momentum=0.3), (5, 3, 2, 4)),
    "volumes": (nn.BatchNorm3d(3), (5, 3, 2, 3, 2)),
}
Other = nn.GroupNorm | nn.RMSNorm | nn.InstanceNorm
OTHERS: tuple[Other, ...] = (nn.GroupNorm(2, 4), nn.RMSNorm(2), nn.InstanceNorm(4))
OF_OTHERS = (3, 4, 5, 2)
each = pytest.mark.parametrize(("layer", "shape"), INPUTS.values(), ids=INPUTS)


def parameters(layer: nn.Module) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    return {name: Array(rng.uniform(0.5, 1.5, size=spec.shape)) for name, spec in layer.specs().items()}


def batch(shape: tuple[int, ...]) -> NDArray:
    return np.random.default_rng(1).normal(2, 3, size=shape)


def spans(x: NDArray) -> tuple[int, ...]:
    return (1, -1, *(1,) * (x.ndim - 2))


@each
def test_training_uses_the_batch_and_moves_the_running_statistics(layer: Batched, shape: tuple[int, ...]):
    params, x = parameters(layer), batch(shape)
    axes = (0, *range(2, x.ndim))
    y, after = nn.forward(layer, params, Array(x), nn.train())
    p = {name: array.numpy().reshape(spans(x)) for name, array in params.items()}
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    expected = (x - mean) / np.sqrt(variance + layer.epsilon) * p["weight"] + p["bias"]
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-9)
    moved = {"running_mean": x.mean(axes), "running_var": x.var(axes, ddof=1)}
    assert set(after) == set(moved)
    for name, value in moved.items():
        old = params[name].numpy()
        np.testing.assert_allclose(after[name].numpy(), old + layer.momentum * (value - old), rtol=1e-9)


@each
def test_evaluation_uses_the_running_statistics_and_keeps_them(layer: Batched, shape: tuple[int, ...]):
    params, x = parameters(layer), batch(shape)
    y, after = nn.forward(layer, params, Array(x))
    p = {name: array.numpy().reshape(spans(x)) for name, array in params.items()}
    expected = (x - p["running_mean"]) / np.sqrt(p["running_var"] + layer.epsilon) * p["weight"] + p["bias"]
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-9)
    for name, array in after.items():
        np.testing.assert_array_equal(array.numpy(), params[name].numpy())


@pytest.mark.parametrize("name", INPUTS)
def test_torch_gives_the_same(name: str):
    layer, shape = INPUTS[name]
    params, x = parameters(layer), batch(shape)
    for step, mode in enumerate((nn.train(), nn.train(), nn.EVAL)):
        y, after = nn.forward(layer, params, Array(x), mode)
        params |= after
        np.testing.assert_allclose(y.numpy(), answer(f"norms/{name}/{step}/y"), rtol=1e-9, atol=1e-12)
        for buffer, array in after.items():
            np.testing.assert_allclose(array.numpy(), answer(f"norms/{name}/{step}/{buffer}"), rtol=1e-9)


@pytest.mark.parametrize("layer", OTHERS, ids=["group", "root", "instance"])
def test_other_norms_as_in_torch(layer: Other):
    y = layer(parameters(layer), Array(batch(OF_OTHERS)))
    np.testing.assert_allclose(y.numpy(), answer(f"norms/{type(layer).__name__}"), rtol=1e-9, atol=1e-12)


@each
def test_rows_without_weight_do_not_matter(layer: Batched, shape: tuple[int, ...]):
    params, x = parameters(layer), batch(shape)
    padded = np.concatenate([x, np.full((2, *shape[1:]), 1e3)])
    weight = Array(np.array([1.0] * len(x) + [0.0] * 2))
    y, after = nn.forward(layer, params, Array(x), nn.train())
    wide, kept = nn.forward(layer, params, Array(padded), nn.train(weight=weight))
    np.testing.assert_allclose(wide.numpy()[: len(x)], y.numpy(), rtol=1e-9)
    for name in after:
        np.testing.assert_allclose(kept[name].numpy(), after[name].numpy(), rtol=1e-9)


@each
def test_a_row_of_weight_two_is_two_rows(layer: Batched, shape: tuple[int, ...]):
    params, x = parameters(layer), batch(shape)
    weight = np.array([2.0] + [1.0] * (len(x) - 1))
    y, after = nn.forward(layer, params, Array(np.concatenate([x[:1], x])), nn.train())
    heavy, moved = nn.forward(layer, params, Array(x), nn.train(weight=Array(weight)))
    np.testing.assert_allclose(heavy.numpy(), y.numpy()[1:], rtol=1e-9)
    for name in after:
        np.testing.assert_allclose(moved[name].numpy(), after[name].numpy(), rtol=1e-9)


def test_rows_of_axes_merged_with_the_examples_have_the_weight_of_their_example():
    layer, x, weight = nn.BatchNorm1d(3), batch((4, 5, 3)), np.array([1.0, 2.0, 0.0, 1.0])
    params, flat = parameters(layer), Array(x.reshape(20, 3))
    y, after = nn.forward(layer, params, flat, nn.train(weight=Array(weight)))
    known, moved = nn.forward(layer, params, flat, nn.train(weight=Array(np.repeat(weight, 5))))
    np.testing.assert_allclose(y.numpy(), known.numpy(), rtol=1e-12)
    for name, value in moved.items():
        np.testing.assert_allclose(after[name].numpy(), value.numpy(), rtol=1e-12)
    with pytest.raises(ShapeError, match=r"one weight for each of 20 examples.*merged"):
        nn.forward(layer, params, flat, nn.train(weight=Array(np.ones(3))))


@each
def test_a_batch_without_weight_moves_nothing(layer: Batched, shape: tuple[int, ...]):
    params = parameters(layer)
    y, after = nn.forward(layer, params, Array(batch(shape)), nn.train(weight=Array(np.zeros(shape[0]))))
    assert np.isfinite(y.numpy()).all()
    for name, array in after.items():
        np.testing.assert_array_equal(array.numpy(), params[name].numpy())


def test_one_row_alone_moves_the_mean_only():
    layer = nn.BatchNorm1d(3)
    params, x = parameters(layer), batch((1, 3))
    _, after = nn.forward(layer, params, Array(x), nn.train())
    np.testing.assert_array_equal(after["running_var"].numpy(), params["running_var"].numpy())
    assert np.all(after["running_mean"].numpy() != params["running_mean"].numpy())


@each
def test_gradients_equal_finite_differences(
    layer: Batched, shape: tuple[int, ...], check_gradients: Callable[..., None]
):
    params, x = parameters(layer), batch(shape)
    buffers = {name: params.pop(name) for name in ("running_mean", "running_var")}
    weigh = Array(np.random.default_rng(5).normal(size=shape))
    example = np.array([1.0, 1.0, 0.0, 2.0, 1.0])

    def scalar(given: dict[str, Array]) -> Array:
        mode = nn.train(weight=given["example"])
        y, after = nn.forward(layer, {**buffers, **given}, given["x"], mode)
        return (y * weigh).sum() + (after["running_var"] * after["running_mean"]).sum()

    check_gradients(scalar, {name: array.numpy() for name, array in params.items()} | {"x": x, "example": example})


def test_buffers_of_a_model_come_back_by_name():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 3), nn.BatchNorm1d(3))
    zero = Array(np.zeros(3, np.float32))
    first = {name: Array(value) for name, value in model.init(0).items()}
    first |= {"1.running_mean": zero, "4.running_mean": zero}  # one object under two names
    x = Array(batch((6, 4)).astype(np.float32))

    def loss(trained: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        y, buffers = nn.forward(model, {**first, **trained}, x, nn.train())
        return xp.sum(y * y), buffers

    trained = {name: first[name] for name, spec in model.specs().items() if spec.role == "shared"}
    (_, after), gradients = value_and_grad(loss, has_aux=True)(trained)
    assert set(gradients) == set(trained)
    assert set(after) == {f"{layer}.running_{what}" for layer in (1, 4) for what in ("mean", "var")}
    hidden = nn.Sequential(*model.layers[:1])(first, x).numpy()
    np.testing.assert_allclose(after["1.running_mean"].numpy(), 0.1 * hidden.mean(0), rtol=1e-5)
    assert not np.allclose(after["4.running_mean"].numpy(), after["1.running_mean"].numpy())


@dataclass(frozen=True)
class Confused(nn.Module):
    """Reports something that is no buffer of its own."""

    wrong: str

    def specs(self) -> dict[str, nn.ParameterSpec]:
        return {"count": nn.ParameterSpec((1,), nn.Constant(0.0), "buffer")}

    def __call__(self, params: nn.Parameters, x: Array, mode: nn.Mode = nn.EVAL) -> Array:
        if mode.record is not None:
            mode.record(*((x, x) if self.wrong == "input" else (params["count"], x)))
        return x


def test_mistakes_are_named():
    x = Array(np.ones((4, 3)))
    count = {"count": Array(np.zeros(1))}
    with pytest.raises(InputError, match="which is no buffer that it was given"):
        nn.forward(Confused("input"), count, x)
    with pytest.raises(InputError, match=r"turns the buffer 'count' from float64\[1\] into float64\[4,3\]"):
        nn.forward(Confused("shape"), count, x)
    with pytest.raises(InputError, match="BatchNorm1d.* needs the parameter 'running_mean'"):
        nn.forward(nn.BatchNorm1d(3), {}, Array(np.zeros((2, 3), np.float32)), nn.train())
    with pytest.raises(InputError, match="BatchNorm2d: momentum must be in 0 .. 1, got 'a'"):
        nn.BatchNorm2d(3, momentum="a")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="BatchNorm2d: momentum must be in 0 .. 1, got 2"):
        nn.BatchNorm2d(3, momentum=2)
    layer = nn.BatchNorm2d(3)
    with pytest.raises(ShapeError, match=r"takes \[B, 3, H, W\], got \[4, 3\]"):
        layer(parameters(layer), x)
    rows = nn.BatchNorm1d(3)
    with pytest.raises(ShapeError, match=r"one weight for each of 4 examples, got \[3\]"):
        rows(parameters(rows), x, nn.train(weight=Array(np.ones(3))))


def test_training_the_touched_rows_is_training_the_table():
    """Steps of plain SGD on the slice, put back into the table, against steps on the whole table."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(50, 4))
    head = rng.normal(size=(3, 4))
    rule = optim.sgd(0.5)
    hyper, on = {"lr": Array(np.array([0.5]))}, Array(np.ones(1))

    def step(weight: NDArray, ids: NDArray, labels: NDArray) -> tuple[float, NDArray]:
        model = nn.Sequential(nn.Embedding(len(weight), 4), nn.MeanPool(), nn.Linear(4, 3, bias=False))

        def loss(params: dict[str, Array]) -> Array:
            given = {**params, "2.weight": Array(head)}
            return xp.mean(softmax_cross_entropy(model(given, Array(ids)), Array(labels)))

        params = {"0.weight": Array(weight)}
        value, gradients = value_and_grad(loss)(params)
        return value.item(), rule.update(gradients, {}, params, hyper, on)[0]["0.weight"].numpy()

    sparse = table
    for _ in range(4):
        ids, labels = rng.integers(0, 50, (3, 5)).astype(np.int32), rng.integers(0, 3, 3).astype(np.int32)
        value, table = step(table, ids, labels)
        rows = nn.TouchedRows.of(ids, table_rows=50, capacity=15)
        assert rows.gather(sparse).shape == (15, 4)
        np.testing.assert_array_equal(rows.rows[rows.ids], ids)
        again, part = step(rows.gather(sparse), rows.ids, labels)
        sparse = rows.scatter(sparse, part)
        assert again == pytest.approx(value, rel=1e-12)
        np.testing.assert_allclose(sparse, table, rtol=1e-12)


def test_touched_rows_refuse_what_does_not_fit():
    with pytest.raises(InputError, match="whole numbers in 0 .. 4"):
        nn.TouchedRows.of(np.array([1, 5]), table_rows=5)
    for ids in ([1, 2], np.array([0.5])):
        with pytest.raises(InputError, match="a NumPy array of whole numbers in 0 .. 4"):
            nn.TouchedRows.of(ids, table_rows=5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="touches 3 rows, and the step has room for 2"):
        nn.TouchedRows.of(np.array([1, 2, 4]), table_rows=5, capacity=2)
    rows = nn.TouchedRows.of(np.array([1, 2, 1]), table_rows=5)
    with pytest.raises(InputError, match="The table has 2 rows, and the batch touches row 2"):
        rows.gather(np.zeros((2, 4)))
    with pytest.raises(InputError, match=r"has 3 rows, got \[2, 4\]"):
        rows.scatter(np.zeros((5, 4)), np.zeros((2, 4)))


NORMS: dict[str, Callable[[float], nn.Module]] = {
    "LayerNorm": lambda epsilon: nn.LayerNorm(4, epsilon),
    "RMSNorm": lambda epsilon: nn.RMSNorm(4, epsilon),
    "GroupNorm": lambda epsilon: nn.GroupNorm(2, 4, epsilon),
    "InstanceNorm": lambda epsilon: nn.InstanceNorm(4, epsilon),
    "BatchNorm1d": lambda epsilon: nn.BatchNorm1d(4, epsilon),
    "BatchNorm2d": lambda epsilon: nn.BatchNorm2d(4, epsilon),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("epsilon", [0.0, -1e-5, 1e-50, float("nan"), None, "a"])
def test_an_epsilon_that_would_divide_by_zero_is_refused(name: str, epsilon: Any) -> None:
    with pytest.raises(InputError, match=f"{name}: epsilon must be in 1e-30 .. 1, got {epsilon!r}"):
        NORMS[name](epsilon)
