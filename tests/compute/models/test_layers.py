"""Laws over the table of layers: parameters as stated, forward = the formula in NumPy, gradients = finite differences,
first values by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import numpy as np
import pytest

from coterie.compute import nn
from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.ir import NDArray
from coterie.compute.nn.initialisers import he_uniform, stream
from coterie.errors import InputError, ShapeError

Formula = Callable[[Mapping[str, NDArray], NDArray], NDArray]
FIXED = np.random.default_rng(8).uniform(size=(4, 6))


def correlate(x: NDArray, w: NDArray, stride: int, padding: int, dilation: int, groups: int) -> NDArray:
    """Cross-correlation, one output number at a time."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    count, _, high, wide = x.shape
    out, channels, kh, kw = w.shape
    rows, columns = ((size - dilation * (k - 1) - 1) // stride + 1 for size, k in ((high, kh), (wide, kw)))
    y = np.zeros((count, out, rows, columns))
    for o in range(out):
        first = o // (out // groups) * channels
        for i in range(rows):
            for j in range(columns):
                window = x[:, first : first + channels, i * stride :, j * stride :][
                    :, :, : dilation * kh : dilation, : dilation * kw : dilation
                ]
                y[:, o, i, j] = np.sum(window * w[o], axis=(1, 2, 3))
    return y


def pool(x: NDArray, kernel: int, stride: int, how: Callable[..., NDArray]) -> NDArray:
    rows, columns = ((size - kernel) // stride + 1 for size in x.shape[2:])
    windows = [
        [
            how(x[:, :, i * stride : i * stride + kernel, j * stride : j * stride + kernel], axis=(2, 3))
            for j in range(columns)
        ]
        for i in range(rows)
    ]
    return np.moveaxis(np.array(windows), (0, 1), (2, 3))


def correlate_any(
    x: NDArray, w: NDArray, stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...], groups: int
) -> NDArray:
    """Cross-correlation over any number of axes, one product at a time."""
    x = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding)))
    channels, kernel = w.shape[1], w.shape[2:]
    sizes = [
        (size - d * (k - 1) - 1) // s + 1 for size, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)
    ]
    y = np.zeros((len(x), len(w), *sizes))
    for o in range(len(w)):
        first = o // (len(w) // groups) * channels
        for place in np.ndindex(*sizes):
            for tap in np.ndindex(*kernel):
                at = tuple(p * s + t * d for p, s, t, d in zip(place, stride, tap, dilation, strict=True))
                y[(slice(None), o, *place)] += x[(slice(None), slice(first, first + channels), *at)] @ w[o][(..., *tap)]
    return y


def pool_any(
    x: NDArray, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...], how: Callable[..., NDArray]
) -> NDArray:
    """Windows over any number of axes, one at a time; padding is -inf for np.max, else zeros."""
    fill = -np.inf if how is np.max else 0.0
    x = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding)), constant_values=fill)
    sizes = [(size - k) // s + 1 for size, k, s in zip(x.shape[2:], kernel, stride, strict=True)]
    y = np.zeros((*x.shape[:2], *sizes))
    for place in np.ndindex(*sizes):
        window = tuple(slice(p * s, p * s + k) for p, s, k in zip(place, stride, kernel, strict=True))
        y[(..., *place)] = how(x[(..., *window)], axis=tuple(range(2, x.ndim)))
    return y


def layer_norm(p: Mapping[str, NDArray], x: NDArray) -> NDArray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * p["weight"] + p["bias"]


def softmax(x: NDArray) -> NDArray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def spread(x: NDArray, w: NDArray, stride: int, padding: int, groups: int, more: int = 0) -> NDArray:
    """The transpose of a cross-correlation: every input number paints the kernel, times itself, onto the output."""
    count, channels, high, wide = x.shape
    _, made, kh, kw = w.shape
    y = np.zeros((count, made * groups, (high - 1) * stride + kh + more, (wide - 1) * stride + kw + more))
    for c in range(channels):
        first = c // (channels // groups) * made
        for i in range(high):
            for j in range(wide):
                window = y[:, first : first + made, i * stride : i * stride + kh, j * stride : j * stride + kw]
                window += x[:, c, i, j][:, None, None, None] * w[c]
    return y[:, :, padding : y.shape[2] - padding, padding : y.shape[3] - padding]


def by_group(x: NDArray, groups: int) -> NDArray:
    rows = x.reshape(len(x), groups, -1)
    normal = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    return normal.reshape(x.shape)


def zero_padded(x: NDArray) -> NDArray:
    return np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))


@dataclass(frozen=True)
class Case:
    layer: nn.Module
    input: tuple[int, ...]
    parameters: dict[str, tuple[int, ...]]
    formula: Formula
    mode: nn.Mode = nn.EVAL


def fixed_uniform(shape: tuple[int, ...]) -> Array:
    return Array(FIXED.reshape(shape))


CASES = [
    Case(nn.Linear(6, 3), (4, 6), {"weight": (3, 6), "bias": (3,)}, lambda p, x: x @ p["weight"].T + p["bias"]),
    Case(nn.Linear(6, 3, bias=False), (4, 6), {"weight": (3, 6)}, lambda p, x: x @ p["weight"].T),
    Case(nn.Linear(6, 3), (2, 2, 6), {"weight": (3, 6), "bias": (3,)}, lambda p, x: x @ p["weight"].T + p["bias"]),
    Case(nn.Linear(6, 3), (6,), {"weight": (3, 6), "bias": (3,)}, lambda p, x: x @ p["weight"].T + p["bias"]),
    Case(
        nn.Conv2d(2, 4, 3),
        (2, 2, 6, 5),
        {"weight": (4, 2, 3, 3), "bias": (4,)},
        lambda p, x: correlate(x, p["weight"], 1, 0, 1, 1) + p["bias"][:, None, None],
    ),
    Case(
        nn.Conv2d(4, 4, (3, 2), stride=2, padding=1, groups=2, bias=False),
        (2, 4, 7, 6),
        {"weight": (4, 2, 3, 2)},
        lambda p, x: correlate(x, p["weight"], 2, 1, 1, 2),
    ),
    Case(
        nn.Conv2d(1, 2, 2, dilation=2, bias=False),
        (2, 1, 5, 5),
        {"weight": (2, 1, 2, 2)},
        lambda p, x: correlate(x, p["weight"], 1, 0, 2, 1),
    ),
    Case(nn.MaxPool2d(2), (2, 3, 6, 4), {}, lambda p, x: pool(x, 2, 2, np.max)),
    Case(nn.MaxPool2d(3, stride=2), (2, 3, 7, 7), {}, lambda p, x: pool(x, 3, 2, np.max)),
    Case(nn.AvgPool2d(2), (2, 3, 6, 4), {}, lambda p, x: pool(x, 2, 2, np.mean)),
    Case(nn.AvgPool2d(3, stride=2, padding=1), (2, 3, 6, 4), {}, lambda p, x: pool(zero_padded(x), 3, 2, np.mean)),
    Case(nn.MaxPool2d(3, 1, padding=1), (2, 3, 4, 5), {}, lambda p, x: pool(zero_padded(x + 9), 3, 1, np.max) - 9),
    Case(nn.AdaptiveAvgPool2d(), (2, 3, 6, 4), {}, lambda p, x: x.mean((2, 3), keepdims=True)),
    Case(nn.AdaptiveAvgPool2d((3, 2)), (2, 3, 6, 4), {}, lambda p, x: x.reshape(2, 3, 3, 2, 2, 2).mean((3, 5))),
    Case(
        nn.ConvTranspose2d(2, 3, 3),
        (2, 2, 4, 3),
        {"weight": (2, 3, 3, 3), "bias": (3,)},
        lambda p, x: spread(x, p["weight"], 1, 0, 1) + p["bias"][:, None, None],
    ),
    Case(
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False),
        (2, 4, 3, 3),
        {"weight": (4, 3, 3, 3)},
        lambda p, x: spread(x, p["weight"], 2, 1, 2, more=1),
    ),
    Case(
        nn.GroupNorm(2, 4),
        (3, 4, 3, 2),
        {"weight": (4,), "bias": (4,)},
        lambda p, x: by_group(x, 2) * p["weight"][:, None, None] + p["bias"][:, None, None],
    ),
    Case(
        nn.GroupNorm(1, 4),
        (3, 4),
        {"weight": (4,), "bias": (4,)},
        lambda p, x: by_group(x, 1) * p["weight"] + p["bias"],
    ),
    Case(nn.InstanceNorm(3), (2, 3, 4, 2), {}, lambda p, x: by_group(x, 3)),
    Case(
        nn.RMSNorm(5),
        (3, 4, 5),
        {"weight": (5,)},
        lambda p, x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * p["weight"],
    ),
    Case(
        nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2),
        (2, 4, 9),
        {"weight": (6, 2, 3), "bias": (6,)},
        lambda p, x: correlate_any(x, p["weight"], (2,), (2,), (2,), 2) + p["bias"][:, None],
    ),
    Case(
        nn.Conv1d(3, 2, 4, bias=False),
        (2, 3, 7),
        {"weight": (2, 3, 4)},
        lambda p, x: correlate_any(x, p["weight"], (1,), (0,), (1,), 1),
    ),
    Case(
        nn.Conv3d(2, 3, 2),
        (2, 2, 3, 4, 3),
        {"weight": (3, 2, 2, 2, 2), "bias": (3,)},
        lambda p, x: correlate_any(x, p["weight"], (1,) * 3, (0,) * 3, (1,) * 3, 1) + p["bias"][:, None, None, None],
    ),
    Case(
        nn.Conv3d(4, 2, (3, 1, 2), stride=(2, 1, 2), padding=(2, 0, 1), dilation=(2, 1, 1), groups=2, bias=False),
        (1, 4, 4, 2, 3),
        {"weight": (2, 2, 3, 1, 2)},
        lambda p, x: correlate_any(x, p["weight"], (2, 1, 2), (2, 0, 1), (2, 1, 1), 2),
    ),
    Case(nn.MaxPool1d(3), (2, 3, 8), {}, lambda p, x: pool_any(x, (3,), (3,), (0,), np.max)),
    Case(nn.MaxPool1d(3, stride=2, padding=1), (2, 3, 8), {}, lambda p, x: pool_any(x, (3,), (2,), (1,), np.max)),
    Case(nn.AvgPool1d(2), (2, 3, 7), {}, lambda p, x: pool_any(x, (2,), (2,), (0,), np.mean)),
    Case(nn.AvgPool1d(3, stride=1, padding=1), (2, 3, 5), {}, lambda p, x: pool_any(x, (3,), (1,), (1,), np.mean)),
    Case(nn.MaxPool3d(2), (2, 2, 4, 5, 2), {}, lambda p, x: pool_any(x, (2,) * 3, (2,) * 3, (0,) * 3, np.max)),
    Case(
        nn.MaxPool3d((3, 2, 3), stride=(1, 2, 1), padding=(1, 0, 1)),
        (2, 2, 3, 4, 3),
        {},
        lambda p, x: pool_any(x, (3, 2, 3), (1, 2, 1), (1, 0, 1), np.max),
    ),
    Case(
        nn.AvgPool3d((2, 3, 1), stride=(2, 1, 1), padding=(0, 1, 0)),
        (2, 2, 4, 3, 2),
        {},
        lambda p, x: pool_any(x, (2, 3, 1), (2, 1, 1), (0, 1, 0), np.mean),
    ),
    Case(nn.AdaptiveAvgPool1d(), (2, 3, 6), {}, lambda p, x: x.mean(2, keepdims=True)),
    Case(nn.AdaptiveAvgPool1d(2), (2, 3, 6), {}, lambda p, x: x.reshape(2, 3, 2, 3).mean(3)),
    Case(nn.AdaptiveAvgPool3d(), (2, 2, 3, 2, 4), {}, lambda p, x: x.mean((2, 3, 4), keepdims=True)),
    Case(
        nn.AdaptiveAvgPool3d((3, 1, 2)),
        (2, 2, 3, 2, 4),
        {},
        lambda p, x: x.reshape(2, 2, 3, 1, 1, 2, 2, 2).mean((3, 5, 7)),
    ),
    Case(nn.MeanPool(), (2, 3, 4), {}, lambda p, x: x.mean(1)),
    Case(nn.Flatten(), (2, 3, 4, 5), {}, lambda p, x: x.reshape(2, 60)),
    Case(nn.LayerNorm(5), (3, 4, 5), {"weight": (5,), "bias": (5,)}, layer_norm),
    Case(nn.ReLU(), (4, 6), {}, lambda p, x: np.maximum(x, 0)),
    Case(nn.Tanh(), (4, 6), {}, lambda p, x: np.tanh(x)),
    Case(nn.Sigmoid(), (4, 6), {}, lambda p, x: 1 / (1 + np.exp(-x))),
    Case(nn.LeakyReLU(), (4, 6), {}, lambda p, x: np.where(x > 0, x, 0.01 * x)),
    Case(nn.LeakyReLU(0.2), (4, 6), {}, lambda p, x: np.where(x > 0, x, 0.2 * x)),
    Case(nn.ELU(), (4, 6), {}, lambda p, x: np.where(x > 0, x, np.exp(x) - 1)),
    Case(nn.ELU(0.5), (4, 6), {}, lambda p, x: np.where(x > 0, x, 0.5 * (np.exp(x) - 1))),
    Case(nn.SiLU(), (4, 6), {}, lambda p, x: x / (1 + np.exp(-x))),
    Case(nn.HardSigmoid(), (4, 6), {}, lambda p, x: np.clip(x / 6 + 0.5, 0, 1)),
    Case(nn.HardSwish(), (4, 6), {}, lambda p, x: x * np.clip(x / 6 + 0.5, 0, 1)),
    Case(nn.GELU(), (4, 6), {}, lambda p, x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    Case(nn.Softmax(), (4, 6), {}, lambda p, x: softmax(x)),
    Case(nn.Dropout(0.3), (4, 6), {}, lambda p, x: x),
    Case(nn.Dropout(0.3), (4, 6), {}, lambda p, x: np.where(FIXED >= 0.3, x / 0.7, 0), nn.train(fixed_uniform)),
    Case(
        nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 2, bias=False)),
        (4, 6),
        {"0.weight": (3, 6), "0.bias": (3,), "2.weight": (2, 3)},
        lambda p, x: np.tanh(x @ p["0.weight"].T + p["0.bias"]) @ p["2.weight"].T,
    ),
]


def point(case: Case) -> tuple[dict[str, NDArray], NDArray]:
    rng = np.random.default_rng(2)
    return {name: rng.normal(size=shape) for name, shape in case.parameters.items()}, rng.normal(size=case.input)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.layer} {case.input}")
def test_parameters_are_as_stated(case: Case):
    assert {name: spec.shape for name, spec in case.layer.specs().items()} == case.parameters
    assert all(spec.role == "shared" for spec in case.layer.specs().values())
    first = case.layer.init(3)
    assert {name: (array.shape, array.dtype.name) for name, array in first.items()} == {
        name: (shape, "float32") for name, shape in case.parameters.items()
    }
    assert case.layer.count() == sum(array.size for array in first.values())


@pytest.mark.capability("B2")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.layer} {case.input}")
def test_forward_equals_the_formula(case: Case):
    params, x = point(case)
    y = case.layer({name: Array(value) for name, value in params.items()}, Array(x), case.mode)
    np.testing.assert_allclose(y.numpy(), case.formula(params, x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.layer} {case.input}")
def test_gradients_equal_finite_differences(case: Case, check_gradients: Callable[..., None]):
    params, x = point(case)
    shape: tuple[int, ...] = case.formula(params, x).shape
    weigh = Array(np.random.default_rng(5).normal(size=shape))

    def scalar(arrays: dict[str, Array]) -> Array:
        given = {name: value for name, value in arrays.items() if name != "x"}
        y = case.layer(given, arrays["x"], case.mode) * weigh
        return (y * y).sum()

    check_gradients(scalar, params | {"x": x})


def test_activations_are_finite_far_out_and_have_the_slopes_of_pytorch_at_0():
    far = Array(np.array([-1e4, 0, 1e4], np.float32))
    for layer, slopes in (
        (nn.LeakyReLU(0.1), [0.1, 0.1, 1]),
        (nn.ELU(2.0), [0, 2, 1]),
        (nn.SiLU(), [0, 0.5, 1]),
    ):
        assert np.isfinite(layer({}, far).numpy()).all()

        def total(x: Array, layer: nn.Module = layer) -> Array:
            return layer({}, x).sum()

        np.testing.assert_allclose(grad(total)(far).numpy(), slopes, rtol=1e-6)


def test_embedding_takes_rows_and_gives_their_gradient(check_gradients: Callable[..., None]):
    layer = nn.Embedding(5, 3)
    ids = np.array([[0, 4], [4, 2]], np.int32)
    table = np.random.default_rng(2).normal(size=(5, 3))
    np.testing.assert_array_equal(layer({"weight": Array(table)}, Array(ids)).numpy(), table[ids])

    def scalar(params: dict[str, Array]) -> Array:
        rows = layer(params, Array(ids))
        return (rows * rows).sum()

    check_gradients(scalar, {"weight": table})
    assert {name: spec.shape for name, spec in layer.specs().items()} == {"weight": (5, 3)}


def test_first_values_depend_on_seed_and_name_alone():
    model = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 2))
    longer = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2))
    first, again, other, more = model.init(1), model.init(1), model.init(2), longer.init(1)
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
        np.testing.assert_array_equal(array, more[name])
        assert not np.array_equal(array, other[name])
    assert not np.array_equal(nn.Linear(4, 4).init(1)["weight"][0], nn.Linear(4, 4).init(1)["bias"])


def test_first_values_are_pinned():
    """The raw Philox stream is stable, so these bytes never change."""
    bits = stream(0, "0.weight").random_raw(1)[0]
    expected = np.float32((2 * (int(bits) >> 11) * 2.0**-53 - 1) / np.sqrt(6))
    first = nn.Sequential(nn.Linear(6, 3)).init(0)["0.weight"]
    assert first.flat[0] == expected
    np.testing.assert_array_equal(first.flat[:3], np.array(PINNED, np.float32))


PINNED = [0.29468539357185364, 0.27061063051223755, -0.07209724932909012]


@pytest.mark.parametrize(
    ("init", "low", "high", "deviation"),
    [
        (nn.Linear(25, 4000).specs()["weight"].init, -0.2, 0.2, 0.4 / 12**0.5),
        (nn.Conv2d(4, 4000, 5).specs()["weight"].init, -0.1, 0.1, 0.2 / 12**0.5),
        (nn.Embedding(10, 10).specs()["weight"].init, -6, 6, 1),
        (he_uniform(150), -0.2, 0.2, 0.4 / 12**0.5),
        (nn.Constant(0.5), 0.5, 0.5, 0),
    ],
)
def test_first_values_have_the_stated_distribution(init: nn.Initialiser, low: float, high: float, deviation: float):
    values = init((1000, 100), stream(0, "any")).astype(np.float64)
    assert low - 1e-6 <= values.min() and values.max() <= high + 1e-6
    assert values.std() == pytest.approx(deviation, rel=0.02)
    assert values.mean() == pytest.approx((low + high) / 2, abs=0.01)
    halves = values[:500].ravel(), values[500:].ravel()
    if deviation:
        assert abs(np.corrcoef(*halves)[0, 1]) < 0.02


def test_dropout_keeps_the_mean():
    rng = np.random.default_rng(0)
    mode = nn.train(lambda shape: Array(rng.uniform(size=shape).astype(np.float32)))
    y = nn.Dropout(0.25)({}, Array(np.ones((200, 500), np.float32)), mode).numpy()
    assert y.mean() == pytest.approx(1, abs=0.01)
    assert set(np.unique(y)) == {np.float32(0), np.float32(4 / 3)}


UNTYPED: Any = nn  # as a newcomer's editor sees it: without a type checker

MISTAKES: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: nn.Linear(0, 3), InputError, "Linear: inputs must be a whole number of at least 1, got 0"),
    (lambda: UNTYPED.Linear(4.0, 3), InputError, "Linear: inputs must be a whole number of at least 1, got 4.0"),
    (lambda: UNTYPED.Linear(4, "3"), InputError, "Linear: outputs must be a whole number of at least 1, got '3'"),
    (lambda: nn.Conv2d(1, 2, 0), InputError, "Conv2d: kernel must be whole, at least 1, or"),
    (lambda: UNTYPED.Conv2d(1, 2, (3, 3, 3)), InputError, "Conv2d: kernel must be whole"),
    (lambda: nn.Conv2d(1, 2, 3, stride=0), InputError, "Conv2d: stride must be whole"),
    (lambda: nn.Conv2d(1, 2, 3, padding=-1), InputError, "Conv2d: padding must be whole"),
    (lambda: nn.MaxPool2d(0), InputError, "MaxPool2d: kernel must be whole"),
    (lambda: nn.AvgPool2d(2, stride=0), InputError, "AvgPool2d: stride must be whole"),
    (lambda: UNTYPED.Sequential([nn.ReLU()]), InputError, "Sequential: layer 0 is a list, not a layer"),
    (lambda: UNTYPED.Sequential(nn.ReLU(), nn.ReLU), InputError, "Sequential: layer 1 is the class ReLU"),
    (lambda: UNTYPED.zoo.mlp(4), InputError, "as in .4, 16, 3.; got 4"),
    (lambda: nn.Conv2d(3, 4, 3, groups=2), InputError, "2 groups must divide inputs 3"),
    (lambda: nn.Dropout("half"), InputError, "rate must be at least 0 and below 1, got 'half'"),  # pyright: ignore[reportArgumentType]
    (lambda: nn.Dropout(1.0), InputError, "rate must be at least 0 and below 1"),
    (lambda: nn.Dropout(0.5)({}, Array(np.ones(2)), nn.train()), InputError, "needs random numbers in training"),
    (
        lambda: nn.Linear(2, 3)({}, Array(np.ones((1, 2)))),
        InputError,
        r"needs the parameter 'weight'; it was given none",
    ),
    (lambda: nn.Linear(2, 3)({}, Array(np.ones((1, 4)))), ShapeError, r"Linear.* takes \[\.\.\., 2\], got \[1, 4\]"),
    (lambda: nn.MaxPool2d(2)({}, Array(np.ones((1, 4)))), ShapeError, r"takes \[B, C, H, W\], got \[1, 4\]"),
    (lambda: nn.LayerNorm(3)({}, Array(np.ones((1, 4)))), ShapeError, r"takes \[\.\.\., 3\], got \[1, 4\]"),
    (lambda: nn.Flatten()({}, Array(np.ones(()))), ShapeError, r"takes \[B, ...\], got \[\]"),
    (
        lambda: nn.Sequential(nn.ReLU(), nn.Linear(2, 3))({}, Array(np.ones((1, 4)))),
        ShapeError,
        "Layer 1 of the model: Linear",
    ),
    (lambda: nn.GroupNorm(3, 4), InputError, "GroupNorm: 3 groups must divide channels 4"),
    (lambda: nn.GroupNorm(2, 4)({}, Array(np.ones((1, 3)))), ShapeError, r"takes \[B, 4, \.\.\.\], got \[1, 3\]"),
    (lambda: nn.RMSNorm(3)({}, Array(np.ones((1, 4)))), ShapeError, r"takes \[\.\.\., 3\], got \[1, 4\]"),
    (
        lambda: nn.AdaptiveAvgPool2d(2)({}, Array(np.ones((1, 1, 3, 4)))),
        ShapeError,
        "takes images of whole multiples of 2 by 2, got .*divides",
    ),
    (lambda: nn.ConvTranspose2d(3, 4, 3, groups=2), InputError, "2 groups must divide inputs 3"),
    (
        lambda: nn.ConvTranspose2d(1, 1, 3, output_padding=1, bias=False)(
            {"weight": Array(np.ones((1, 1, 3, 3)))}, Array(np.ones((1, 1, 2, 2)))
        ),
        ShapeError,
        r"output_padding \(1, 1\) is not below the stride",
    ),
    (lambda: nn.LeakyReLU(-0.1), InputError, "LeakyReLU: slope must be in 0 .. 1, got -0.1"),
    (lambda: nn.ELU(-1.0), InputError, "ELU: alpha must be in 0 .. "),
    (lambda: nn.Conv1d(3, 4, 3, groups=2), InputError, "Conv1d: 2 groups must divide inputs 3 and outputs 4"),
    (lambda: UNTYPED.Conv1d(1, 2, (3,)), InputError, "Conv1d: kernel must be a whole number of at least 1, got"),
    (lambda: UNTYPED.Conv3d(1, 2, (3, 3)), InputError, "Conv3d: kernel must be .* at least 1, or 3 of them, got"),
    (lambda: nn.MaxPool3d(2, padding=-1), InputError, "MaxPool3d: padding must be a whole number of at least 0"),
    (lambda: nn.AvgPool1d(2, stride=0), InputError, "AvgPool1d: stride must be a whole number of at least 1, got 0"),
    (lambda: nn.MaxPool1d(2)({}, Array(np.ones((1, 4)))), ShapeError, r"takes \[B, C, L\], got \[1, 4\]"),
    (
        lambda: nn.Conv3d(1, 1, 3)({}, Array(np.ones((1, 1, 2, 4, 4)))),
        ShapeError,
        "takes volumes of a depth of at least 3",
    ),
    (lambda: nn.zoo.mlp([3]), InputError, "sizes of its input and its output"),
]


@pytest.mark.parametrize(("make", "kind", "reason"), MISTAKES, ids=[reason for _, _, reason in MISTAKES])
def test_mistakes_are_named(make: Callable[[], object], kind: type[Exception], reason: str):
    with pytest.raises(kind, match=reason):
        make()


CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: nn.Linear(2, 3)({}, Array(np.ones((1, 4)))), r"Linear.*, got \[1, 4\]\. .*last axis"),
    (
        lambda: nn.Conv2d(1, 2, 3)({}, Array(np.ones((2, 8, 8, 1)))),
        r"Conv2d.*got \[2, 8, 8, 1\]\. .*permute_dims\(x, \(0, 3",
    ),
    (
        lambda: nn.Conv2d(1, 2, 3)({}, Array(np.ones((1, 8, 8)))),
        r"Conv2d.*got \[1, 8, 8\]\. One example alone.*x\[None\]",
    ),
    (
        lambda: nn.BatchNorm2d(3)({}, Array(np.ones((1, 8, 8, 3)))),
        r"BatchNorm2d.*got \[1, 8, 8, 3\]\. The channels come before",
    ),
    (
        lambda: UNTYPED.BatchNorm1d(3)(
            nn.BatchNorm1d(3).init(0), Array(np.ones((4, 3))), nn.train(None, Array(np.ones((4, 3))))
        ),
        r"BatchNorm1d.*one weight for each of 4 examples, got \[4, 3\]\. mode.weight counts",
    ),
    (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(2, 3)))({}, Array(np.ones((1, 4)))),
        r"Layer 0 of the model: Layer 0 of the model: Linear",
    ),
    (lambda: nn.Linear(2, 3)({}, Array(np.ones((1, 2)))), r"Linear.*needs the parameter 'weight'.*init\(seed\)"),
    (
        lambda: UNTYPED.Sequential(nn.Linear(2, 3))(np.ones((1, 2)), {}),
        "the parameters must be arrays by name",
    ),
    (
        lambda: nn.losses.softmax_cross_entropy(Array(np.ones((4, 2))), Array(np.ones((4, 2)))),
        r"softmax_cross_entropy takes logits.*got \[4, 2\] and \[4, 2\]\. .*argmax\(labels",
    ),
    (
        lambda: nn.losses.softmax_cross_entropy(Array(np.ones((4, 2))), Array(np.ones(4))),
        r"softmax_cross_entropy\(float64\[4\]\): .*int32",
    ),
    (lambda: nn.metrics.accuracy(Array(np.ones((4, 2))), Array(np.ones((4, 2)))), "accuracy takes.*numbers of classes"),
]


@pytest.mark.parametrize(("call", "reason"), CALLS, ids=[reason for _, reason in CALLS])
def test_a_wrong_call_of_a_model_names_the_line_the_layer_and_a_fix(call: Callable[[], object], reason: str):
    with pytest.raises(InputError, match=rf"^\S*test_layers.py:\d+: {reason}"):
        call()


def test_layers_are_values():
    assert nn.Linear(2, 3) == nn.Linear(2, 3) != nn.Linear(2, 4)
    assert len({nn.zoo.lenet(), nn.zoo.lenet()}) == 1
    with pytest.raises(FrozenInstanceError):
        nn.Linear(2, 3).inputs = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("model", "parameters", "inputs", "classes"),
    [
        (nn.zoo.mlp([784, 200, 200, 10]), 199_210, (2, 784), 10),
        (nn.zoo.lenet(), 61_706, (2, 1, 28, 28), 10),
        (nn.zoo.fedavg_cnn(), 1_663_370, (2, 1, 28, 28), 10),
        (nn.zoo.embedding_classifier(50, 8, 3, hidden=4), 50 * 8 + 8 * 4 + 4 + 4 * 3 + 3, (2, 7), 3),
        (nn.zoo.embedding_classifier(50, 8, 3), 50 * 8 + 8 * 3 + 3, (2, 7), 3),
    ],
)
def test_models_have_the_stated_size(model: nn.Module, parameters: int, inputs: tuple[int, ...], classes: int):
    assert model.count() == parameters
    ids = len(inputs) == 2 and inputs[1] == 7
    x = np.ones(inputs, np.int32 if ids else np.float32)
    y = model({name: Array(array) for name, array in model.init(0).items()}, Array(x))
    assert (y.shape, y.dtype.name) == ((2, classes), "float32")
