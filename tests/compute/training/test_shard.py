"""Functions over shards: one, two and four agree; what cannot be divided is refused (B8)."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie.compute import grad, jit, shard, tree, use_mode, value_and_grad
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.optim import adam
from coterie.compute.step.step import TrainStep
from coterie.errors import InputError, ShapeError, TraceError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 12)).astype(np.float32)
W = RNG.normal(size=(12, 4)).astype(np.float32)
Y = RNG.integers(0, 4, 8).astype(np.int32)
PARAMS = {"w": W, "b": np.zeros(4, np.float32)}


def loss(params: dict[str, Array], x: Array, y: Array) -> Array:
    return xp.mean(softmax_cross_entropy(x @ params["w"] + params["b"], y))


def gram(x: Array) -> tuple[Array, Array, Array]:
    return xp.matrix_transpose(x) @ x, xp.mean(x, axis=0), x * 2.0


CASES: list[tuple[str, Callable[..., Any], Any, Any, tuple[Any, ...]]] = [
    ("rows of a batch", value_and_grad(loss), (None, 0, 0), "mean", (PARAMS, X, Y)),
    ("columns of a weight", lambda x, w: xp.tanh(x @ w), (None, 1), 1, (X, W)),
    ("rows of an input", lambda x, w: xp.tanh(x @ w), (0, None), 0, (X, W)),
    ("the summed axis", lambda x, w: x @ w, (1, 0), "sum", (X, W)),
    ("axes from the end", lambda x, w: x @ w, (-1, -2), "sum", (X, W)),
    ("several results", gram, 0, ("sum", "mean", 0), (X,)),
    ("whole numbers", lambda y: xp.sum(xp.astype(y, xp.int32)), 0, "sum", (Y,)),
]


def plain(result: Any) -> list[NDArray]:
    return [leaf.numpy() for leaf in tree.flatten(result)[0]]


@pytest.mark.capability("B8")
@pytest.mark.parametrize(("fn", "in_axes", "out", "arguments"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_b8_one_two_and_four_shards_agree(fn: Any, in_axes: Any, out: Any, arguments: Any) -> None:
    expected = plain(fn(*(tree.map_tree(Array, argument) for argument in arguments)))
    for shards in (1, 2, 4):
        found = plain(shard(fn, shards=shards, in_axes=in_axes, out=out)(*arguments))
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


@pytest.mark.capability("B8")
def test_b8_data_parallel_training_is_training() -> None:
    step = TrainStep(lambda params, batch: loss(params, batch["x"], batch["y"]), adam(0.05))
    one = two = step.init(PARAMS)
    gradients = shard(grad(loss), shards=4, in_axes=(None, 0, 0), out="mean")
    hyper = {name: Array(np.array([value], np.float32)) for name, value in step.optimizer.hyper.items()}
    for _ in range(5):
        one, _ = step(one, {"x": X, "y": Y})
        mean = gradients(two["params"], X, Y)
        params, state = step.optimizer.update(
            mean, two["optimizer"], two["params"], hyper, Array(np.ones(1, np.float32))
        )
        two = {"params": params, "optimizer": state}
    for a, b in zip(plain(one), plain(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_every_shard_has_a_thread_and_the_callers_mode() -> None:
    seen: list[tuple[str, tuple[int, ...]]] = []
    both = threading.Barrier(2, timeout=30)

    def fn(x: Array) -> Array:
        both.wait()  # passes only when two shards are in it at the same time
        seen.append((threading.current_thread().name, x.shape))
        return x

    with use_mode("eager"):
        found = shard(fn, shards=2, out=0)(X)
    assert found.numpy().tobytes() == X.tobytes()
    assert len({name for name, _ in seen}) == 2 and {shape for _, shape in seen} == {(4, 12)}


def test_a_shard_fails_as_the_function_does() -> None:
    with pytest.raises(ShapeError, match=r"matmul\(float32\[4,4\], float32\[12,4\]"):
        shard(lambda x, w: x @ w @ w, shards=2, in_axes=(0, None), out=0)(X, W)


MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: shard(xp.tanh, shards=3, out=0)(X),
        ShapeError,
        r"axis 0 of float32\[8,12\] has 8 .* 3 shards do not divide.*Use one of 1, 2, 4, 8 shards",
    ),
    (lambda: shard(xp.tanh, shards="2", out=0), InputError, "shards must be a whole number of at least 1, got '2'"),  # type: ignore[arg-type]
    (lambda: shard(xp.tanh, shards=0, out=0), InputError, "shards must be a whole number of at least 1"),
    (lambda: shard(xp.tanh, shards=2, out="max"), InputError, "no collective 'max'"),  # type: ignore[arg-type]
    (lambda: shard(xp.tanh, shards=2, out=True), InputError, "no collective True"),
    (lambda: shard(xp.tanh, shards=2, in_axes=2, out=0)(X), InputError, r"no axis 2 in float32\[8,12\]"),
    (lambda: shard(xp.tanh, shards=2, in_axes=None, out=0)(X), InputError, "no argument is cut"),
    (lambda: shard(xp.tanh, shards=2, in_axes=(0, 0), out=0)(X), InputError, "2 axes for 1 arguments"),
    (lambda: shard(xp.sum, shards=2, out=0)(X), InputError, r"float32\[\] has no axis 0 to join"),
    (lambda: shard(xp.tanh, shards=2, out=(0, 0))(X), InputError, "does not return a tuple"),
    (lambda: shard(lambda y: y, shards=2, out="mean")(Y), InputError, r"the mean of int32\[4\]"),
    (lambda: jit(shard(xp.tanh, shards=2, out=0), fullgraph=True)(X), TraceError, "cannot be part of a trace"),
]


@pytest.mark.capability("B8")
@pytest.mark.parametrize(("make", "kind", "message"), MISTAKES, ids=[message for *_, message in MISTAKES])
def test_b8_mistakes_are_named(make: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()
