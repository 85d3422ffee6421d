"""Masks reach the sparsity that was asked for, and what they prune has no influence and stays 0 in training."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import nn, optim
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.compress import (
    by_magnitude,
    by_outputs,
    cubic_sparsity,
    masked,
    n_of_m,
    pruned,
    sparsity,
)
from coterie.compute.ir import NDArray
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.quant import qat
from coterie.compute.training import Trainer
from coterie.errors import InputError

MODEL = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))


def rows(count: int = 200, seed: int = 0) -> dict[str, NDArray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count).astype(np.int32)
    centres = np.array([[2, 0, 0, 1, 0, 0], [0, 2, 0, -1, 0, 0], [0, 0, 2, 0, 0, 0]], np.float32)
    return {"x": centres[y] + rng.normal(size=(count, 6)).astype(np.float32) * 0.7, "y": y}


@pytest.mark.capability("G12")
@settings(max_examples=40)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 7)), min_size=1, max_size=4),
    share=st.floats(0, 0.99),
    seed=st.integers(0, 9),
    levels=st.integers(1, 4),
)
def test_the_share_that_is_asked_for_is_pruned_and_it_is_the_smallest(
    shapes: list[tuple[int, int]], share: float, seed: int, levels: int
) -> None:
    rng = np.random.default_rng(seed)
    # Few different values, so that many are equal.
    params = {
        f"{i}.weight": rng.integers(-levels, levels + 1, shape).astype(np.float32) for i, shape in enumerate(shapes)
    }
    params["0.bias"] = np.ones(3, np.float32)
    for scope in ("all", "each"):
        masks = by_magnitude(params, share, scope=scope)  # pyright: ignore[reportArgumentType]
        assert set(masks) == {name for name in params if name.endswith("weight")}
        groups = [list(masks)] if scope == "all" else [[name] for name in masks]
        for names in groups:
            size = sum(masks[name].size for name in names)
            assert sum(int((masks[name] == 0).sum()) for name in names) == int(share * size)
            kept = [np.abs(params[name][masks[name] > 0]) for name in names]
            gone = [np.abs(params[name][masks[name] == 0]) for name in names]
            if sum(map(len, kept)) and sum(map(len, gone)):
                assert np.concatenate(kept).min() >= np.concatenate(gone).max()
        zeroed = masked(params, masks)
        assert all((zeroed[name][masks[name] == 0] == 0).all() for name in masks)
        assert all((zeroed[name][masks[name] > 0] == params[name][masks[name] > 0]).all() for name in masks)


@pytest.mark.capability("G12")
def test_n_of_m_neighbours_and_whole_outputs() -> None:
    rng = np.random.default_rng(0)
    params = {
        "a.weight": rng.normal(size=(5, 10)).astype(np.float32),
        "c.weight": rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
    }
    masks = n_of_m(params, 2, 4)
    assert (masks["a.weight"][:, :8].reshape(5, 2, 4).sum(2) == 2).all() and (masks["a.weight"][:, 8:] == 1).all()
    flat, kept = np.abs(params["c.weight"].reshape(4, 27)), masks["c.weight"].reshape(4, 27)
    for group in range(6):
        part = slice(4 * group, 4 * group + 4)
        least, most = (np.sort(flat[:, part][kept[:, part] == keep].reshape(4, 2)) for keep in (1, 0))
        assert (least[:, 0] >= most[:, 1]).all()
    whole = by_outputs(params, 0.5)
    norms = np.abs(params["c.weight"]).sum((1, 2, 3))
    np.testing.assert_array_equal(whole["c.weight"][:, 0, 0, 0], norms >= np.sort(norms)[2])
    assert ((whole["c.weight"] == 0).all((1, 2, 3)) | (whole["c.weight"] == 1).all((1, 2, 3))).all()
    assert by_outputs(params, 0.99)["a.weight"].any(), "one output at least stays"
    assert by_outputs({"a.weight": np.ones((1, 4), np.float32)}, 0.99)["a.weight"].all()


def test_pruning_little_by_little_ends_where_it_should() -> None:
    shares = [cubic_sparsity(step, 10, 0.9) for step in range(13)]
    assert shares[0] == 0 and shares[10] == shares[12] == pytest.approx(0.9)
    assert (np.diff(shares) >= 0).all() and shares[3] > 0.5, "quickly at first"
    assert cubic_sparsity(5, 10, 0.8, first=0.4) == pytest.approx(0.8 - 0.4 * 0.125)


OPTIMIZERS: dict[str, Callable[[], optim.Optimizer]] = {
    "sgd": lambda: optim.sgd(0.1),
    "momentum": lambda: optim.sgd(0.1, momentum=0.9),
    "adam": lambda: optim.adam(0.01),
    "adagrad": lambda: optim.adagrad(0.1),
    "yogi": lambda: optim.yogi(0.01),
}


@pytest.mark.capability("G12")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_keeps_pruned_weights_at_exactly_zero(name: str) -> None:
    masks = by_magnitude(MODEL.init(4), 0.7)
    model = pruned(MODEL, masks)
    trainer = Trainer(model, softmax_cross_entropy, OPTIMIZERS[name](), batch_size=20, seed=4)
    trainer.fit(rows(), epochs=2)
    after = trainer.params
    for weight, mask in masks.items():
        assert (after[weight][mask == 0] == 0).all()
        assert (after[weight] != MODEL.init(4)[weight])[mask > 0].any(), "others learn"
        np.testing.assert_array_equal(after[f"{weight}.mask"], mask)


@pytest.mark.capability("G12")
@pytest.mark.parametrize("inner", [MODEL, qat(MODEL)])
def test_a_pruned_weight_has_no_influence_and_no_gradient(inner: nn.Module) -> None:
    masks = by_magnitude(MODEL.init(0), 0.5)
    model = pruned(inner, masks)
    params = {key: Array(value) for key, value in model.init(0).items()}
    x = Array(rows(20)["x"])
    # As a lossy codec or noise would leave it.
    moved = params | {key: Array(params[key].numpy() + (mask == 0) * np.float32(9)) for key, mask in masks.items()}
    np.testing.assert_array_equal(model(params, x).numpy(), model(moved, x).numpy())

    def cost(weights: dict[str, Array]) -> Any:
        return nn.losses.mean_squared_error(model({**params, **weights}, x), Array(np.ones((20, 3), np.float32))).sum()

    for key, gradient in grad(cost)({key: params[key] for key in masks}).items():
        assert not gradient.numpy()[masks[key] == 0].any() and gradient.numpy()[masks[key] > 0].any()


@pytest.mark.capability("G12")
def test_most_weights_can_go_once_training_goes_on_without_them() -> None:
    data, test = rows(400), rows(300, 1)

    def trainer(model: nn.Module, **options: Any) -> Trainer:
        metrics = {"accuracy": nn.metrics.accuracy}
        return Trainer(model, softmax_cross_entropy, optim.adam(0.02), batch_size=20, metrics=metrics, **options)

    dense = trainer(MODEL)
    dense.fit(data, epochs=4)
    masks = by_magnitude(dense.params, 0.8)
    sparse = trainer(pruned(MODEL, masks), initial=masked(dense.params, masks))
    before = sparse.evaluate(test)["accuracy"]
    sparse.fit(data, epochs=4)
    assert sparsity(masks) == pytest.approx(0.8, abs=0.01)
    assert sparse.evaluate(test)["accuracy"] >= max(before, dense.evaluate(test)["accuracy"] - 0.05)


def test_mistakes_are_named() -> None:
    params = MODEL.init(0)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: by_magnitude(params, 1.0), "share to prune"),
        (lambda: by_magnitude(params, 0.5, select=("encoder.*",)), "No weight of two axes or more is called encoder"),
        (lambda: by_magnitude(params, 0.5, scope="some"), "scope"),  # pyright: ignore[reportArgumentType]
        (lambda: by_magnitude({"0.weight": np.full((2, 2), np.nan, np.float32)}, 0.5), "'0.weight' is not finite"),
        (lambda: n_of_m(params, 5, 4), "5 of 4"),
        (lambda: cubic_sparsity(-1, 10, 0.5), "no position"),
        (lambda: masked(params, {"9.weight": np.ones((2, 2), np.float32)}), "'9.weight'"),
        (lambda: pruned(MODEL, {"0.weight": np.ones((2, 2), np.float32)}), r"must be \[12, 6\]"),
        (lambda: pruned(MODEL, {"0.weight": np.full((12, 6), 0.5, np.float32)}), "other numbers than 0 and 1"),
        (
            lambda: Trainer(MODEL, softmax_cross_entropy, optim.sgd(0.1), initial={"0.weights": params["0.weight"]}),
            "'0.weights' is floats",
        ),
        (
            lambda: Trainer(MODEL, softmax_cross_entropy, optim.sgd(0.1), initial={"0.bias": np.full(12, np.inf)}),
            "not finite",
        ),
    ]
    for call, named in cases:
        with pytest.raises(InputError, match=named):
            call()
