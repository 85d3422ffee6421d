"""Gradient accumulation: micro-batches of any weights equal the one large batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import optim
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.training.accumulation import accumulate
from coterie.errors import InputError

OPTIMIZERS = {
    "sgd": optim.sgd(0.1, weight_decay=0.05),
    "momentum": optim.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optim.adam(0.01),
    "adamw": optim.adamw(0.01),
}
each = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
Dict = dict[str, NDArray]
SHAPES = {"w": (3, 2), "b": (2,), "gain": ()}


def numbers(rng: np.random.Generator) -> Dict:
    return {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in SHAPES.items()}


def arrays(values: Dict) -> dict[str, Array]:
    return {name: Array(value) for name, value in values.items()}


def plain(values: dict[str, Array]) -> Dict:
    return {name: value.numpy() for name, value in values.items()}


def advance(
    optimizer: optim.Optimizer,
    grads: Dict,
    state: Dict,
    params: Dict,
    weight: float,
    active: float = 1,
    **changed: float,
) -> tuple[Dict, Dict]:
    hyper = {name: np.array([value], np.float32) for name, value in {**optimizer.hyper, **changed}.items()}
    on, counted = Array(np.array([active], np.float32)), Array(np.array([weight], np.float32))
    moved, kept = optimizer.step(arrays(grads), arrays(state), arrays(params), arrays(hyper), on, weight=counted)
    return plain(moved), plain(kept)


def mean(gradients: list[Dict], weights: list[float]) -> Dict:
    total = max(sum(weights), 1e-12)
    pairs = list(zip(gradients, weights, strict=True))
    return {
        name: np.asarray(sum(g[name].astype(np.float64) * w for g, w in pairs) / total, np.float32) for name in SHAPES
    }


def bits(values: Dict) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in values.items()}


@each
@settings(max_examples=20)
@given(seed=st.integers(0, 1000), weights=st.lists(st.sampled_from([0.0, 1.0, 3.0, 8.0]), min_size=9, max_size=9))
def test_micro_batches_equal_the_large_batch(optimizer: optim.Optimizer, seed: int, weights: list[float]) -> None:
    rng = np.random.default_rng(seed)
    several = accumulate(optimizer, 3)
    params = large = numbers(rng)
    state, plain_state = plain(several.init(arrays(params))), plain(optimizer.init(arrays(params)))
    gradients = [numbers(rng) for _ in weights]
    for index, (gradient, weight) in enumerate(zip(gradients, weights, strict=True)):
        before = params
        gradient = gradient if weight else {name: np.zeros_like(value) for name, value in gradient.items()}
        params, state = advance(several, gradient, state, params, weight)
        if index % 3 < 2:
            assert bits(params) == bits(before)
            continue
        group = slice(index - 2, index + 1)
        large, plain_state = advance(optimizer, mean(gradients[group], weights[group]), plain_state, large, 1.0)
        for name in SHAPES:
            np.testing.assert_allclose(params[name], large[name], rtol=1e-6, atol=1e-6 if sum(weights[group]) else 3e-6)
        assert all(not value.any() for name, value in state.items() if "accumulate" in name)


@each
@settings(max_examples=20)
@given(seed=st.integers(0, 1000), steps=st.integers(0, 5))
def test_an_inactive_step_returns_everything_bit_for_bit(optimizer: optim.Optimizer, seed: int, steps: int) -> None:
    rng = np.random.default_rng(seed)
    several = accumulate(optimizer, 3)
    params = numbers(rng)
    state = plain(several.init(arrays(params)))
    for _ in range(steps):
        params, state = advance(several, numbers(rng), state, params, 2.0)
    after, kept = advance(several, numbers(rng), state, params, 5.0, active=0)
    assert bits(after) == bits(params) and bits(kept) == bits(state)


def test_a_leftover_waits_in_the_state_and_a_fed_one_flushes_it() -> None:
    rng = np.random.default_rng(3)
    sgd = optim.sgd(0.1)
    several, params = accumulate(sgd, 4), numbers(rng)
    gradients = [numbers(rng) for _ in range(3)]
    left, state = params, plain(several.init(arrays(params)))
    for gradient in gradients[:2]:
        left, state = advance(several, gradient, state, left, 2.0)
    assert bits(left) == bits(params) and state["accumulate.count"] == 2
    flushed, state = advance(several, gradients[2], state, left, 4.0, micro_batches=1)
    expected, _ = advance(sgd, mean(gradients, [2, 2, 4]), {}, params, 1.0)
    for name in SHAPES:
        np.testing.assert_allclose(flushed[name], expected[name], rtol=1e-6, atol=1e-7)
    assert state["accumulate.count"] == 0


def test_update_without_weights_counts_all_alike() -> None:
    rng = np.random.default_rng(4)
    several, params, gradients = accumulate(optim.sgd(0.1), 2), numbers(rng), [numbers(rng), numbers(rng)]
    hyper = {name: Array(np.array([value], np.float32)) for name, value in several.hyper.items()}
    moved, state = arrays(params), several.init(arrays(params))
    for gradient in gradients:
        moved, state = several.update(arrays(gradient), state, moved, hyper, Array(np.ones(1, np.float32)))
    expected, _ = advance(optim.sgd(0.1), mean(gradients, [1, 1]), {}, params, 1.0)
    np.testing.assert_allclose(moved["w"].numpy(), expected["w"], rtol=1e-6)


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match="needs an Optimizer, such as .*got None"):
        accumulate(None, 2)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="micro_batches must be a whole number of at least 1, got 0"):
        accumulate(optim.sgd(0.1), 0)
    with pytest.raises(InputError, match="accumulates already"):
        accumulate(accumulate(optim.sgd(0.1), 2), 2)
