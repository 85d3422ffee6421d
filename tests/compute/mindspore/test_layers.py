"""Layers, losses and optimizers under MindSpore's names compute what their documentation says (B2, B3)."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from coterie.compute import mindspore as ms
from coterie.compute.interactive.mode import use_mode
from coterie.compute.ir import NDArray
from coterie.compute.mindspore import Parameter, Tensor, nn, ops
from coterie.compute.mindspore.initializer import HeUniform, Normal, XavierUniform, initializer
from coterie.errors import ArgumentTypeError, ArgumentValueError

RNG = np.random.default_rng(9)
IMAGES = RNG.normal(size=(2, 3, 7, 6)).astype(np.float32)


@pytest.fixture(params=["graph", "eager"], autouse=True)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with use_mode(request.param):
        yield request.param


def windows(x: NDArray, kernel: tuple[int, int], stride: tuple[int, int]) -> NDArray:
    """[N, C, H', W', kh, kw]."""
    found = np.lib.stride_tricks.sliding_window_view(x, kernel, axis=(2, 3))
    return found[:, :, :: stride[0], :: stride[1]]


def padded(x: NDArray, pads: tuple[int, int, int, int], value: float = 0.0) -> NDArray:
    top, bottom, left, right = pads
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)


@pytest.mark.parametrize(
    ("options", "pads"),
    [
        ({"pad_mode": "valid"}, (0, 0, 0, 0)),
        ({"pad_mode": "pad", "padding": 1}, (1, 1, 1, 1)),
        ({"pad_mode": "pad", "padding": (0, 1, 2, 0)}, (0, 1, 2, 0)),
        ({"pad_mode": "same"}, (1, 1, 1, 2)),
        ({"pad_mode": "same", "stride": (2, 3)}, (1, 1, 0, 1)),
    ],
    ids=["valid", "pad", "four pads", "same", "same with stride"],
)
@pytest.mark.capability("B2")
def test_convolution_and_pools_pad_as_they_say(options: dict[str, Any], pads: tuple[int, int, int, int]) -> None:
    stride = options.get("stride", (1, 1))
    conv = nn.Conv2d(3, 4, (3, 4), has_bias=True, **options)
    seen = windows(padded(IMAGES, pads), (3, 4), stride)
    expected = np.einsum("nchwij,ocij->nohw", seen, conv.weight.asnumpy()) + conv.bias.asnumpy()[:, None, None]
    np.testing.assert_allclose(conv(Tensor(IMAGES)).asnumpy(), expected, rtol=1e-4, atol=1e-5)
    if isinstance(options.get("padding"), tuple):
        return
    highest = windows(padded(IMAGES, pads, -np.inf), (3, 4), stride).max(axis=(4, 5))
    pool: dict[str, Any] = {"kernel_size": (3, 4), "stride": stride, **options}
    np.testing.assert_allclose(nn.MaxPool2d(**pool)(Tensor(IMAGES)).asnumpy(), highest)
    counted = windows(padded(np.ones_like(IMAGES), pads), (3, 4), stride).sum(axis=(4, 5))
    share = counted if options["pad_mode"] == "same" else 12  # "pad" counts the zeros
    mean = windows(padded(IMAGES, pads), (3, 4), stride).sum(axis=(4, 5)) / share
    np.testing.assert_allclose(nn.AvgPool2d(**pool)(Tensor(IMAGES)).asnumpy(), mean, rtol=1e-5, atol=1e-6)


def test_batch_normalisation_follows_the_batch_in_training_only() -> None:
    layer = nn.BatchNorm2d(3, momentum=0.8)
    assert [p.name for p in layer.untrainable_params()] == ["moving_mean", "moving_variance"]
    before = layer(Tensor(IMAGES)).asnumpy()
    np.testing.assert_allclose(before, IMAGES / np.sqrt(1 + 1e-5), rtol=1e-5)
    layer.set_train()
    gradient = ms.value_and_grad(lambda x: (layer(x) * layer(x)).sum(), None, layer.trainable_params())
    gradient(Tensor(IMAGES))  # two calls of the layer: the averages follow twice
    mean, variance = IMAGES.mean(axis=(0, 2, 3)), IMAGES.var(axis=(0, 2, 3), ddof=1)
    np.testing.assert_allclose(layer.moving_mean.asnumpy(), mean * (0.2 + 0.8 * 0.2), rtol=1e-4)
    np.testing.assert_allclose(layer.moving_variance.asnumpy(), 0.64 + variance * (0.2 + 0.8 * 0.2), rtol=1e-4)
    told = layer(Tensor(IMAGES)).asnumpy()
    np.testing.assert_allclose(told.mean(axis=(0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(told.std(axis=(0, 2, 3)), 1, atol=1e-3)
    layer.set_train(False)
    moving = [layer.moving_mean.asnumpy(), layer.moving_variance.asnumpy()]
    expected = (IMAGES - moving[0][:, None, None]) / np.sqrt(moving[1] + 1e-5)[:, None, None]
    np.testing.assert_allclose(layer(Tensor(IMAGES)).asnumpy(), expected, rtol=1e-4, atol=1e-5)


def test_dropout_draws_anew_in_training_only() -> None:
    ms.set_seed(3)
    layer, x = nn.Dropout(p=0.25), Tensor(np.ones((40, 50), np.float32))
    assert layer(x).asnumpy().tolist() == x.asnumpy().tolist()
    layer.set_train()
    first, second = layer(x).asnumpy(), layer(x).asnumpy()
    assert not np.array_equal(first, second)
    np.testing.assert_allclose(np.unique(first), [0, 4 / 3], rtol=1e-6)
    assert abs(np.mean(first == 0) - 0.25) < 0.05
    ms.set_seed(3)
    again = nn.Dropout(p=0.25).set_train()(x).asnumpy()
    assert np.array_equal(again, first)


class Deep(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.layers = nn.CellList([nn.Dense(4, 4, activation="tanh") for _ in range(3)])
        self.norm = nn.LayerNorm((4,))
        self.scale = Parameter(np.ones(1, np.float32), "scale")

    def construct(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) * self.scale


def test_cells_in_lists_are_called_in_a_loop() -> None:
    net, ids = Deep(), np.asarray([[1, 2, 0]], np.int32)
    assert [p.name for p in net.trainable_params()][:4] == [
        "scale", "table.embedding_table", "layers.0.weight", "layers.0.bias",
    ]  # fmt: skip
    x = net.table.embedding_table.asnumpy()[ids]
    for layer in list[Any](net.layers):
        x = np.tanh(x @ layer.weight.asnumpy().T + layer.bias.asnumpy())
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-7)
    np.testing.assert_allclose(net(Tensor(ids)).asnumpy(), x, rtol=1e-3, atol=1e-4)


LOGITS, CLASSES = RNG.normal(size=(5, 3)).astype(np.float32), np.asarray([0, 2, 1, 1, 0], np.int32)
SOFT = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
TARGET = (RNG.random((5, 3)) > 0.5).astype(np.float32)
ENTROPY = -np.log(SOFT[np.arange(5), CLASSES])
LOSSES = [
    (nn.CrossEntropyLoss, {}, CLASSES, ENTROPY),
    (nn.CrossEntropyLoss, {}, np.eye(3, dtype=np.float32)[CLASSES], ENTROPY),
    (nn.SoftmaxCrossEntropyWithLogits, {"sparse": True}, CLASSES, ENTROPY),
    (nn.SoftmaxCrossEntropyWithLogits, {}, np.eye(3, dtype=np.float32)[CLASSES], ENTROPY),
    (nn.BCEWithLogitsLoss, {}, TARGET, np.logaddexp(0, LOGITS) - LOGITS * TARGET),
    (nn.MSELoss, {}, TARGET, (LOGITS - TARGET) ** 2),
    (nn.L1Loss, {}, TARGET, abs(LOGITS - TARGET)),
]


@pytest.mark.capability("B3")
@pytest.mark.parametrize(("kind", "options", "labels", "values"), LOSSES, ids=[row[0].__name__ for row in LOSSES])
def test_losses_and_their_reductions(kind: Any, options: dict[str, Any], labels: NDArray, values: NDArray) -> None:
    for reduction, expected in (("none", values), ("mean", values.mean()), ("sum", values.sum())):
        found = kind(reduction=reduction, **options)(Tensor(LOGITS), Tensor(labels))
        np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="no reduction"):
        kind(reduction="median", **options)


def test_functional_losses_weigh() -> None:
    weight, positive = np.float32(2.0), np.float32(3.0)
    found = ops.binary_cross_entropy_with_logits(Tensor(LOGITS), Tensor(TARGET), Tensor(weight), Tensor(positive))
    expected = positive * TARGET * np.logaddexp(0, -LOGITS) + (1 - TARGET) * np.logaddexp(0, LOGITS)
    assert float(found) == pytest.approx(float(np.mean(expected) * weight), rel=1e-5)
    assert float(ops.cross_entropy(Tensor(LOGITS), Tensor(CLASSES))) == pytest.approx(float(ENTROPY.mean()), rel=1e-5)


def trajectory(make: Any, steps: int = 100) -> NDArray:
    """Where an optimizer goes on (p - 3)² from 0."""
    parameter = Parameter(np.zeros(1, np.float32), "p")
    optimizer = make([parameter])
    gradient = ms.value_and_grad(lambda: ((parameter - 3.0) * (parameter - 3.0)).sum(), None, [parameter])
    path: list[float] = []
    for _ in range(steps):
        optimizer(gradient()[1])
        path.append(float(parameter.asnumpy()[0]))
    return np.asarray(path)


def reference(rule: str, steps: int = 100) -> NDArray:
    """The same by the formulas, in double precision."""
    p, m, v, path = 0.0, 0.0, 0.0, []
    for t in range(1, steps + 1):
        g = 2 * (p - 3.0)
        if rule == "sgd":
            p -= 0.05 * g
        elif rule == "momentum":
            m = 0.9 * m + g + 0.01 * p
            p -= 0.01 * m
        elif rule == "nesterov":
            m = 0.9 * m + g
            p -= 0.01 * (g + 0.9 * m)
        else:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            if rule == "adam":
                p -= 0.05 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
            else:
                p -= 0.01 * (m / (np.sqrt(v) + 1e-6) + 0.02 * p)
        path.append(p)
    return np.asarray(path)


OPTIMIZERS = {
    "sgd": lambda p: nn.SGD(p, 0.05),
    "momentum": lambda p: nn.Momentum(p, 0.01, 0.9, weight_decay=0.01),
    "nesterov": lambda p: nn.Momentum(p, 0.01, 0.9, use_nesterov=True),
    "adam": lambda p: nn.Adam(p, 0.05),
    "adam weight decay": lambda p: nn.AdamWeightDecay(p, 0.01, weight_decay=0.02),
}


@pytest.mark.capability("B3")
@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_a_hundred_steps_follow_the_formulas(rule: str) -> None:
    np.testing.assert_allclose(trajectory(OPTIMIZERS[rule]), reference(rule), rtol=2e-3, atol=1e-4)


def test_learning_rates_by_step() -> None:
    plain = trajectory(lambda p: nn.SGD(p, 0.1), 2)
    listed = trajectory(lambda p: nn.SGD(p, [0.1, 0.05, 0.0]), 4)
    np.testing.assert_allclose(listed[0], plain[0])
    np.testing.assert_allclose(listed[1], plain[0] + 0.05 * 2 * (3 - plain[0]), rtol=1e-6)
    assert listed[3] == listed[2] == listed[1]

    class Halving(nn.Cell):
        def construct(self, step):
            return 0.1 * ops.pow(0.5, step.astype(ms.float32))

    halved = trajectory(lambda p: nn.SGD(p, Halving()), 2)
    np.testing.assert_allclose(halved[1], listed[1], rtol=1e-5)


def test_what_optimizers_and_layers_do_not_have_is_refused() -> None:
    parameter = Parameter(np.zeros(1, np.float32), "p")
    with pytest.raises(ArgumentTypeError, match="groups of parameters"):
        nn.SGD([{"params": [parameter], "lr": 0.1}])  # type: ignore[list-item]
    with pytest.raises(ArgumentValueError, match="2 gradients for 1 parameters"):
        nn.SGD([parameter])((Tensor([1.0]), Tensor([1.0])))
    with pytest.raises(ArgumentValueError, match="dampening"):
        nn.SGD([parameter], dampening=0.1)
    with pytest.raises(ArgumentValueError, match="no pad_mode"):
        nn.Conv2d(1, 1, 3, pad_mode="reflect")  # type: ignore[arg-type]
    with pytest.raises(ArgumentValueError, match="has no effect"):
        nn.Conv2d(1, 1, 3, pad_mode="same", padding=1)
    with pytest.raises(ArgumentValueError, match="tanh form"):
        nn.GELU(approximate=False)
    with pytest.raises(ArgumentTypeError, match="Item 1 is a float"):
        nn.SequentialCell(nn.ReLU(), 3.0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentValueError, match="no mode 7"):
        ms.set_context(mode=7)
    with pytest.raises(ArgumentValueError, match="no initializer 'magic'"):
        initializer("magic", [2])


def test_first_values() -> None:
    ms.set_seed(1)
    a, b = (initializer(Normal(0.5, 2.0), (200, 50)).asnumpy() for _ in range(2))
    assert abs(a.mean() - 2) < 0.02 and abs(a.std() - 0.5) < 0.02 and not np.array_equal(a, b)
    ms.set_seed(1)
    assert np.array_equal(initializer(Normal(0.5, 2.0), (200, 50)).asnumpy(), a)
    for start, bound in ((HeUniform(), np.sqrt(6 / 50)), (XavierUniform(), np.sqrt(6 / 250))):
        drawn = abs(initializer(start, (200, 50)).asnumpy())
        assert 0.95 * bound < drawn.max() <= bound
    assert initializer(0.5, 3).asnumpy().tolist() == [0.5] * 3


def test_jit_takes_the_options_of_a_script() -> None:
    doubled = ms.jit(lambda x: 2.0 * x, jit_level="O1", dynamic=1, fullgraph=True, backend="ms_backend")
    assert doubled(ms.Tensor([1.0])).asnumpy() == [2.0]
    assert doubled(ms.Tensor([1.0, 2.0])).asnumpy().tolist() == [2.0, 4.0]
    with pytest.raises(ArgumentTypeError, match="are Parameters, not a ndarray"):
        ms.grad(doubled, None, [np.ones(2)])  # pyright: ignore[reportArgumentType, reportUnknownMemberType]
