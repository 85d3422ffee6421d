"""Gradients of a bounded length: PyTorch's formula over all tensors together, and what is refused."""

from typing import Any

import numpy as np
import pytest

from coterie.compute import optim
from coterie.compute.array import Array
from coterie.errors import InputError

SHAPES = {"weight": (3, 4), "bias": (4,), "gain": (), "scale": (2,)}
ON = Array(np.ones(1, np.float32))


def arrays(seed: int, size: float) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {name: Array(np.asarray(size * random.normal(size=shape), np.float32)) for name, shape in SHAPES.items()}


def run(optimizer: optim.Optimizer, gradients: list[dict[str, Array]]) -> dict[str, Any]:
    params = arrays(0, 1.0)
    state = optimizer.init(params)
    hyper = {name: Array(np.asarray([value], np.float32)) for name, value in optimizer.hyper.items()}
    for each in gradients:
        params, state = optimizer.update(each, state, params, hyper, ON)
    return {name: value.numpy() for name, value in params.items()}


@pytest.mark.parametrize("inner", [optim.sgd(0.1, momentum=0.9), optim.adam(0.01)], ids=["momentum", "adam"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
def test_the_norm_of_all_tensors_together_is_bounded(inner: optim.Optimizer, size: float) -> None:
    gradients = [arrays(seed, size) for seed in (1, 2, 3)]
    short: list[dict[str, Array]] = []
    for each in gradients:
        norm = np.sqrt(sum(float((value.numpy().astype(np.float64) ** 2).sum()) for value in each.values()))
        factor = min(1.0, 0.5 / (norm + 1e-6))
        short.append({name: Array((factor * value.numpy()).astype(np.float32)) for name, value in each.items()})
    for name, expected in run(inner, short).items():
        np.testing.assert_allclose(run(optim.clipped(inner, 0.5), gradients)[name], expected, rtol=2e-5, atol=1e-6)


def test_gradients_that_are_short_enough_pass_bit_for_bit() -> None:
    gradients = [arrays(seed, 1e-3) for seed in (1, 2)]
    plain, clipped = optim.sgd(0.1), optim.clipped(optim.sgd(0.1), 10.0)
    for name, expected in run(plain, gradients).items():
        np.testing.assert_array_equal(run(clipped, gradients)[name], expected)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: optim.clipped(optim.sgd(0.1), 0.0), "norm must be above 0"),
        (lambda: optim.clipped(optim.sgd(0.1), float("nan")), "norm"),
        (lambda: optim.clipped(optim.clipped(optim.sgd(0.1), 1.0), 2.0), "clips already"),
        (lambda: optim.clipped("sgd", 1.0), "needs an Optimizer"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_what_cannot_be_clipped_is_refused(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()
