"""Half precision with a scaled loss (E13): close to float32, an overflow is skipped, the scale finds its size."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from coterie.compute import grad, jit, nn, ops, optim
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.data.batches import Batches
from coterie.compute.ir import NDArray
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.step.precision import GOOD, SCALE, Half, Precision, amp
from coterie.compute.step.rounding import round_bfloat16, rounded
from coterie.compute.step.step import TrainStep
from coterie.compute.training.accumulation import accumulate
from coterie.compute.training.trainer import Trainer
from coterie.errors import InputError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 8)).astype(np.float32)
DATA = {"x": X, "y": np.tanh(X @ RNG.normal(size=8).astype(np.float32))}
PARAMS = {
    "hidden": (RNG.normal(size=(8, 16)) * 0.3).astype(np.float32),
    "out": (RNG.normal(size=(16, 1)) * 0.3).astype(np.float32),
    "gain": np.ones((), np.float32),
}
OPTIMIZERS = {"momentum": optim.sgd(0.05, momentum=0.9), "adam": optim.adam(0.01)}
each = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
halves = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
both_ways = pytest.mark.parametrize("run", [jit, lambda step: step], ids=["graph", "eager"])  # pyright: ignore
Run = Callable[[Any], Callable[..., Any]]


def objective(params: dict[str, Array], batch: dict[str, Array]) -> Array:
    hidden = ops.relu(batch["x"] @ params["hidden"]) * params["gain"]
    error = xp.reshape(hidden @ params["out"], (-1,)) - batch["y"]
    return error * error


def batches(**changed: NDArray) -> Batches:
    return Batches(DATA | changed, batch_size=16, epochs=6)


def curve(step: TrainStep, run: Run) -> tuple[list[float], Any]:
    call, state, losses = run(step), step.init(PARAMS), list[float]()
    for batch in batches():
        state, loss = call(state, batch)
        losses.append(loss.item())
    return losses, state


@pytest.mark.capability("E13")
@each
@halves
@both_ways
def test_e13_half_precision_follows_float32(optimizer: optim.Optimizer, dtype: Half, run: Run) -> None:
    full, _ = curve(TrainStep(objective, optimizer), run)
    half, state = curve(TrainStep(objective, optimizer, Precision(dtype=dtype, scale=1024.0)), run)
    np.testing.assert_allclose(half, full, rtol=0.03, atol=0.02)
    assert np.abs(np.array(half) - full).max() > 0, "nothing was computed in half precision"
    assert all(value.type.dtype == "float32" for group in state.values() for value in group.values())
    assert state["optimizer"][SCALE].item() == 1024 and state["optimizer"][GOOD].item() == 24


def bits(state: Any, *, leaving_out: tuple[str, ...] = ()) -> dict[str, bytes]:
    return {
        f"{group}/{name}": value.numpy().tobytes()
        for group, values in state.items()
        for name, value in values.items()
        if name not in leaving_out
    }


@pytest.mark.capability("E13")
@each
@both_ways
def test_e13_an_overflow_step_is_skipped_and_halves_the_scale(optimizer: optim.Optimizer, run: Run) -> None:
    step = TrainStep(objective, optimizer, Precision(scale=512.0, grow_after=3))
    call, state = run(step), step.init(PARAMS)
    good = next(batches())
    loud = next(batches(x=X * np.float32(3e3)))  # its gradients are beyond 65504, the largest float16
    broken = next(batches(x=np.where(X > 1, np.float32(np.nan), X)))
    scales: list[float] = []
    for batch in (good, loud, broken, good, good, good, good):
        before = state
        state, _ = call(state, batch)
        skipped = batch is not good
        same = bits(state, leaving_out=(SCALE, GOOD)) == bits(before, leaving_out=(SCALE, GOOD))
        assert same == skipped
        scales.append(state["optimizer"][SCALE].item())
    assert scales == [512, 256, 128, 128, 128, 256, 256], "halved twice, doubled after three good steps in a row"


@each
@halves
def test_an_inactive_step_returns_everything_bit_for_bit(optimizer: optim.Optimizer, dtype: Half) -> None:
    step = TrainStep(objective, optimizer, Precision(dtype=dtype, grow_after=2))
    call, state = jit(step), step.init(PARAMS)
    for batch in batches():
        state, _ = call(state, batch)
    after, _ = call(state, next(batches()), {}, Array(np.zeros(1, np.float32)))
    assert bits(after) == bits(state)


def test_a_fixed_scale_stays_and_still_skips() -> None:
    step = TrainStep(objective, optim.sgd(0.1), Precision(scale=1024.0, grow_after=None, halve=False))
    state, _ = jit(step)(step.init(PARAMS), next(batches(x=X * np.float32(3e3))))
    assert bits(state) == bits(step.init(PARAMS))
    assert state["optimizer"][SCALE].item() == 1024


def test_the_scale_keeps_within_its_bounds() -> None:
    low = TrainStep(objective, optim.sgd(0.0), Precision(scale=2.0))
    state = low.init(PARAMS)
    for _ in range(3):
        state, _ = jit(low)(state, next(batches(x=X * np.float32(1e30))))
    assert state["optimizer"][SCALE].item() == 1
    high = TrainStep(objective, optim.sgd(0.0), Precision(dtype="bfloat16", scale=2.0**24, grow_after=1))
    state, _ = jit(high)(high.init(PARAMS), next(batches()))
    assert state["optimizer"][SCALE].item() == 2**24


def test_small_gradients_survive_only_under_a_scale() -> None:
    """Gradients of 1e-8 are 0 in float16; that is what the scale is for."""

    def small(params: dict[str, Array], batch: dict[str, Array]) -> Array:
        return xp.sum(params["gain"] * 1e-4) * xp.sum(batch["x"]) * 1e-4

    def moved(scale: float) -> float:
        step = TrainStep(small, optim.sgd(1.0), Precision(scale=scale))
        state, _ = jit(step)(step.init({"gain": np.zeros(1, np.float32)}), {"x": np.ones(1, np.float32)})
        return state["params"]["gain"].item()

    assert moved(1.0) == 0 and moved(2.0**14) == pytest.approx(-1e-8, rel=0.01)


def test_an_overflowing_micro_batch_is_left_out() -> None:
    step = TrainStep(objective, accumulate(optim.sgd(0.1), 2), Precision(scale=512.0))
    call, state = jit(step), step.init(PARAMS)
    good, loud = next(batches()), next(batches(x=X * np.float32(3e3)))
    state, _ = call(state, good)
    state, _ = call(state, loud)
    assert state["params"]["out"].numpy().tobytes() == PARAMS["out"].tobytes()
    state, _ = call(state, good)
    assert state["params"]["out"].numpy().tobytes() != PARAMS["out"].tobytes()


def test_masks_do_not_overflow_in_float16() -> None:
    x = np.array([-65504, -6e-8, 0, 6e-8, 1, 65504], np.float16)
    for fn in (lambda x: ops.relu(x), lambda x: xp.maximum(x, 0.0), lambda x: xp.minimum(x, 1.0)):  # pyright: ignore
        slope = grad(lambda x, fn=fn: xp.sum(fn(x)))  # pyright: ignore
        eager, graph = slope(Array(x)).numpy(), jit(slope)(Array(x)).numpy()
        assert np.isfinite(graph).all() and graph.tolist() == eager.tolist()
    relu_slope = grad(lambda x: xp.sum(ops.relu(x)))  # pyright: ignore
    assert jit(relu_slope)(Array(x)).numpy().tolist() == [0, 0, 0, 1, 1, 1]


def test_rounding_is_that_of_bfloat16() -> None:
    x = (RNG.normal(size=20000) * 10.0 ** RNG.integers(-30, 30, 20000)).astype(np.float32)
    known = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    for found in (round_bfloat16(Array(x)).numpy(), jit(round_bfloat16)(Array(x)).numpy()):
        tie = (x.view(np.uint32) & 0xFFFF) == 0x8000
        np.testing.assert_array_equal(found[~tie], known[~tie])
        np.testing.assert_array_equal(found.view(np.uint32) & 0xFFFF, 0)


def test_every_value_of_a_rounded_function_is_a_bfloat16() -> None:
    seen: list[NDArray] = []

    def fn(x: Array) -> Array:
        return xp.exp(x * 0.1) + 1.0 / 3.0

    value = rounded(fn)(Array(X)).numpy()
    slope = grad(lambda x: xp.sum(rounded(fn)(x)))(Array(X)).numpy()  # pyright: ignore
    seen += [value, slope]
    for array in seen:
        assert not (array.view(np.uint32) & 0xFFFF).any()
    np.testing.assert_allclose(value, np.exp(X * 0.1) + 1 / 3, rtol=2e-2)
    np.testing.assert_allclose(slope, 0.1 * np.exp(X * 0.1), rtol=3e-2)


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...], int]] = {
    "convolution and pools": (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3)),
        (1, 7, 7),
        0,
    ),
    "norms": (nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.BatchNorm1d(8), nn.Linear(8, 3)), (6,), 0),
    "recurrent": (nn.Sequential(nn.Embedding(9, 8), nn.GRU(8, 8), nn.MeanPool(), nn.Linear(8, 3)), (5,), 9),
    "attention": (
        nn.Sequential(nn.Embedding(9, 8), nn.TransformerBlock(8, 2, 16), nn.MeanPool(), nn.Linear(8, 3)),
        (5,),
        9,
    ),
}


@pytest.mark.capability("E13")
@halves
@pytest.mark.parametrize(("model", "shape", "ids"), LAYERS.values(), ids=LAYERS)
def test_e13_every_family_of_layers_trains_in_half_precision(
    model: nn.Module, shape: tuple[int, ...], ids: int, dtype: Half
) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, ids, (48, *shape), np.int32) if ids else rng.normal(size=(48, *shape)).astype(np.float32)
    data = {"x": x, "y": rng.integers(0, 3, 48).astype(np.int32)}

    def losses(precision: Precision | None) -> NDArray:
        trainer = Trainer(model, softmax_cross_entropy, optim.adam(0.01), batch_size=16, precision=precision)
        return trainer.fit(data, epochs=3).losses

    full, half = losses(None), losses(Precision(dtype=dtype, scale=256.0))
    np.testing.assert_allclose(half, full, rtol=0.02)
    assert np.abs(half - full).max() > 0


def test_levels() -> None:
    assert amp("O0") is None
    assert (amp("O1"), amp("O2")) == (Precision(), Precision(scale=1024.0, grow_after=None, halve=False))


@pytest.mark.parametrize("precision", [None, Precision(scale=64.0), Precision(dtype="bfloat16", scale=64.0)])
def test_a_batch_without_weight_moves_no_running_statistic_and_is_no_overflow(precision: Precision | None) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    params = model.init(0)
    buffers = {name: Array(params.pop(name)) for name in ("1.running_mean", "1.running_var")}

    def objective(params: dict[str, Array], batch: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        prediction, after = nn.forward(
            model, {**params, **buffers}, batch["x"], nn.train(weight=batch["sample_weight"])
        )
        return nn.losses.softmax_cross_entropy(xp.astype(prediction, "float32"), batch["y"]), after

    step, rng = TrainStep(objective, optim.adam(0.1), precision), np.random.default_rng(0)
    x, y = rng.normal(size=(8, 4)).astype(np.float32), rng.integers(0, 3, 8).astype(np.int32)
    before = step.init(params)
    after, (loss, moved) = jit(step)(before, {"x": x, "y": y, "sample_weight": np.zeros(8, np.float32)})
    assert loss.item() == 0
    for name, value in before["params"].items():
        assert np.array_equal(after["params"][name].numpy(), value.numpy()), name
    for name, value in buffers.items():
        np.testing.assert_allclose(moved[name].numpy(), value.numpy(), atol=1e-7)
    if precision is not None:
        assert after["optimizer"][SCALE].item() == 64 and after["optimizer"][GOOD].item() == 1


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (lambda: amp("O9"), "there is no level 'O9'"),  # pyright: ignore[reportArgumentType]
    (lambda: Precision(dtype="float8"), "no half precision 'float8'"),  # pyright: ignore[reportArgumentType]
    (lambda: Precision(scale=0.5), "scale must be from 1"),
    (lambda: Precision(scale="big"), "scale must be from 1 to 2.24, got 'big'"),  # pyright: ignore[reportArgumentType]
    (lambda: Precision(grow_after=0), "grow_after must be a whole number of at least 1"),
]


@pytest.mark.parametrize(("make", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
