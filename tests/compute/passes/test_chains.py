"""Any chain of operators keeps its meaning through all passes for inference, whatever they find in it."""

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import numpy as cnp
from coterie.compute import ops
from coterie.compute.array import Array, as_array
from coterie.compute.ir import NDArray
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes.cost import flops
from coterie.compute.passes.inference import in_float16, optimise_for_inference, optimise_for_integers
from coterie.compute.runtime.executable import Executable
from coterie.errors import InputError
from tests.compute.passes.graphs import answers, kinds, numbers, of

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


@settings(max_examples=60)
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


@settings(max_examples=60)
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


@settings(max_examples=30)
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
