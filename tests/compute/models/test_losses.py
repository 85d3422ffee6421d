"""Losses and metrics: the formulas, one value per example, stable where the formulas are not."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from coterie.compute.array import Array
from coterie.compute.autodiff import grad
from coterie.compute.ir import NDArray
from coterie.compute.nn import losses, metrics
from coterie.errors import InputError, ShapeError

RNG = np.random.default_rng(6)
LOGITS = RNG.normal(size=(5, 4)) * 3
LABELS = np.array([0, 3, 1, 2, 3], np.int32)
SCORES = RNG.normal(size=5)
BITS = np.array([0, 1, 1, 0, 1], np.int32)
BOX = RNG.normal(size=(5, 2, 3))


def log_softmax(z: NDArray) -> NDArray:
    z = z.astype(np.longdouble)
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def sigma(z: NDArray) -> NDArray:
    return 1 / (1 + np.exp(-z))


def bce(z: NDArray, y: NDArray) -> NDArray:
    return -y * np.log(sigma(z)) - (1 - y) * np.log(1 - sigma(z))


def huber(d: NDArray, delta: float) -> NDArray:
    return np.where(np.abs(d) <= delta, d * d / 2, delta * (np.abs(d) - delta / 2))


def smoothed(logits: NDArray, labels: NDArray, weights: NDArray, part: float) -> NDArray:
    """What torch.nn.CrossEntropyLoss(weight, reduction="none", label_smoothing) computes."""
    each, rows = -log_softmax(logits), np.arange(len(labels))
    return (1 - part) * weights[labels] * each[rows, labels] + part / len(weights) * (weights * each).sum(-1)


WEIGHTS = np.array([0.5, 1.0, 0.0, 3.0])
LOG = log_softmax(LOGITS).astype(float)
Loss = Callable[[Array, Array], Array]
CASES: list[tuple[str, Loss, NDArray, NDArray, NDArray]] = [
    ("cross entropy", losses.softmax_cross_entropy, LOGITS, LABELS, -log_softmax(LOGITS)[np.arange(5), LABELS]),
    ("bce [B]", losses.binary_cross_entropy_with_logits, SCORES, BITS, bce(SCORES, BITS)),
    ("bce [B, 1]", losses.binary_cross_entropy_with_logits, SCORES[:, None], BITS, bce(SCORES, BITS)),
    (
        "bce [B, ...]",
        losses.binary_cross_entropy_with_logits,
        BOX,
        (BOX > 0.3).astype(float),
        bce(BOX, (BOX > 0.3).astype(float)).mean((1, 2)),
    ),
    ("mse [B]", losses.mean_squared_error, SCORES, BITS, (SCORES - BITS) ** 2),
    ("mse [B, 1]", losses.mean_squared_error, SCORES[:, None], SCORES[::-1].copy(), (SCORES - SCORES[::-1]) ** 2),
    (
        "cross entropy weights",
        partial(losses.softmax_cross_entropy, class_weights=WEIGHTS.tolist()),
        LOGITS,
        LABELS,
        smoothed(LOGITS, LABELS, WEIGHTS, 0),
    ),
    (
        "cross entropy smoothing",
        partial(losses.softmax_cross_entropy, label_smoothing=0.1),
        LOGITS,
        LABELS,
        smoothed(LOGITS, LABELS, np.ones(4), 0.1),
    ),
    (
        "cross entropy both",
        partial(losses.softmax_cross_entropy, class_weights=WEIGHTS.tolist(), label_smoothing=0.3),
        LOGITS,
        LABELS,
        smoothed(LOGITS, LABELS, WEIGHTS, 0.3),
    ),
    ("nll", losses.negative_log_likelihood, LOG, LABELS, -LOG[np.arange(5), LABELS]),
    (
        "nll weights",
        partial(losses.negative_log_likelihood, class_weights=WEIGHTS.tolist()),
        LOG,
        LABELS,
        -WEIGHTS[LABELS] * LOG[np.arange(5), LABELS],
    ),
    ("mae [B]", losses.mean_absolute_error, SCORES, BITS, np.abs(SCORES - BITS)),
    ("mae [B, ...]", losses.mean_absolute_error, BOX, BOX**2, np.abs(BOX - BOX**2).mean((1, 2))),
    ("huber [B, 1]", losses.huber, SCORES[:, None] * 3, BITS, huber(SCORES * 3 - BITS, 1)),
    ("huber [B, ...]", partial(losses.huber, delta=0.4), BOX, BOX**2, huber(BOX - BOX**2, 0.4).mean((1, 2))),
    ("mse [B, ...]", losses.mean_squared_error, BOX, BOX**2, ((BOX - BOX**2) ** 2).mean((1, 2))),
]


@pytest.mark.parametrize(("name", "loss", "prediction", "target", "expected"), CASES, ids=[case[0] for case in CASES])
def test_a_loss_is_its_formula_and_has_its_gradient(
    name: str, loss: Loss, prediction: NDArray, target: NDArray, expected: NDArray, check_gradients: Callable[..., None]
):
    value = loss(Array(prediction), Array(target))
    assert value.shape == (5,)
    np.testing.assert_allclose(value.numpy(), expected.astype(float), rtol=1e-9)
    weigh = Array(RNG.normal(size=5))

    def scalar(arrays: dict[str, Array]) -> Array:
        return (loss(arrays["prediction"], Array(target)) * weigh).sum()

    check_gradients(scalar, {"prediction": prediction})


def slope_of(loss: Loss, logits: NDArray, labels: NDArray) -> NDArray:
    def total(z: Array) -> Array:
        return loss(z, Array(labels)).sum()

    return grad(total)(Array(logits)).numpy()


@pytest.mark.parametrize("scale", [1e4, -1e4, 3e37])
def test_cross_entropy_is_exact_for_huge_logits(scale: float):
    logits = np.array([[1, 0, -1], [0.5, 1, 1], [1, 1, 1]], np.float32) * np.float32(scale)
    labels = np.array([0, 0, 2], np.int32)
    value = losses.softmax_cross_entropy(Array(logits), Array(labels)).numpy()
    np.testing.assert_allclose(value, -log_softmax(logits)[np.arange(3), labels].astype(float), rtol=1e-6, atol=1e-6)
    slope = slope_of(losses.softmax_cross_entropy, logits, labels)
    expected = np.exp(log_softmax(logits)).astype(float) - np.eye(3)[labels]
    np.testing.assert_allclose(slope, expected, atol=1e-6)


def test_cross_entropy_keeps_small_differences_of_large_logits():
    logits = np.array([[10_000.0, 9_999.0]], np.float32)
    value = losses.softmax_cross_entropy(Array(logits), Array(np.array([0], np.int32))).numpy()
    np.testing.assert_allclose(value, [np.log1p(np.exp(-1.0))], rtol=1e-6)


@pytest.mark.parametrize("scale", [1e4, 1e30])
def test_bce_is_finite_and_exact_for_huge_logits(scale: float):
    logits = np.array([1, 1, -1, -1], np.float32) * np.float32(scale)
    labels = np.array([1, 0, 1, 0], np.int32)
    value = losses.binary_cross_entropy_with_logits(Array(logits), Array(labels)).numpy()
    np.testing.assert_allclose(value, np.array([0, 1, 1, 0]) * np.float32(scale))
    slope = slope_of(losses.binary_cross_entropy_with_logits, logits, labels)
    np.testing.assert_array_equal(slope, [0, 1, -1, 0])


def test_accuracy_counts_and_shares_ties():
    logits = np.array([[3, 1, 2], [1, 3, 2], [2, 2, 1], [5, 5, 5], [np.nan, 1, 2], [-9, -1, -5]], np.float32)
    labels = np.array([0, 0, 1, 2, 2, 1], np.int32)
    value = metrics.accuracy(Array(logits), Array(labels)).numpy()
    np.testing.assert_allclose(value, [1, 0, 0.5, 1 / 3, 0, 1])
    assert value.dtype == np.float32


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_binary_accuracy(shape: tuple[int, ...]):
    logits = np.array([2, -2, 0.5, -0.5], np.float32).reshape(shape)
    value = metrics.binary_accuracy(Array(logits), Array(np.array([1, 1, 0, 0], np.int32))).numpy()
    np.testing.assert_array_equal(value, [1, 0, 0, 1])


def test_errors_of_regressions():
    prediction, target = Array(SCORES.astype(np.float32)), Array(BITS)
    difference = SCORES.astype(np.float32) - BITS
    np.testing.assert_allclose(metrics.squared_error(prediction, target).numpy(), difference**2, rtol=1e-6)
    np.testing.assert_allclose(metrics.absolute_error(prediction, target).numpy(), np.abs(difference), rtol=1e-6)


WRONG: list[tuple[Loss, tuple[int, ...], tuple[int, ...]]] = [
    (losses.softmax_cross_entropy, (5, 4), (4,)),
    (losses.softmax_cross_entropy, (5,), (5,)),
    (losses.softmax_cross_entropy, (5, 4), (5, 1)),
    (losses.binary_cross_entropy_with_logits, (5, 2), (5,)),
    (losses.mean_squared_error, (5,), (5, 1)),
    (losses.mean_squared_error, (), ()),
    (losses.mean_absolute_error, (5,), (5, 1)),
    (losses.huber, (5,), (5, 1)),
    (losses.negative_log_likelihood, (5, 4), (5, 1)),
    (metrics.accuracy, (5, 4), (5, 4)),
    (metrics.binary_accuracy, (5, 2), (5,)),
    (metrics.absolute_error, (5, 2), (5, 2)),
]


@pytest.mark.parametrize(("function", "prediction", "target"), WRONG)
def test_shapes_that_would_broadcast_by_accident_are_refused(
    function: Loss, prediction: tuple[int, ...], target: tuple[int, ...]
):
    with pytest.raises(ShapeError, match=f"{function.__name__}.* takes .*, got "):
        function(Array(np.zeros(prediction, np.float32)), Array(np.zeros(target, np.int32)))


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (partial(losses.softmax_cross_entropy, class_weights=[1.0]), "class_weights must be 4 numbers of at least 0"),
        (partial(losses.negative_log_likelihood, class_weights=[1.0, 1, 1, -1]), "class_weights must be 4 numbers"),
        (partial(losses.softmax_cross_entropy, label_smoothing=1.5), "label_smoothing must be in 0 .. 1, got 1.5"),
        (partial(losses.huber, delta=0.0), "huber: delta must be above 0"),
    ],
)
def test_an_option_of_a_loss_out_of_range_is_refused(loss: Loss, says: str):
    with pytest.raises(InputError, match=says):
        loss(Array(LOGITS), Array(LABELS))


def test_a_class_that_is_ruled_out_leaves_weighted_losses_finite():
    logits = Array(np.array([[0, -np.inf, 1]], np.float32))
    labels = Array(np.array([0], np.int32))
    for weights in ([1.0, 2.0, 3.0], [1.0, 0.0, 3.0]):
        value = losses.softmax_cross_entropy(logits, labels, class_weights=weights).numpy()
        np.testing.assert_allclose(value, [np.log1p(np.e)], rtol=1e-6)


def test_binary_accuracy_of_several_labels_is_their_mean() -> None:
    logits = Array(np.array([[1.0, -1.0, 2.0], [-1.0, -2.0, 3.0]], np.float32))
    labels = Array(np.array([[1, 1, 1], [0, 0, 1]], np.int32))
    np.testing.assert_allclose(metrics.binary_accuracy(logits, labels).numpy(), [2 / 3, 1.0], rtol=1e-6)


def test_an_ignored_label_counts_in_no_mean() -> None:
    generator = np.random.Generator(np.random.PCG64(5))
    logits = Array(generator.normal(size=(3, 4, 5)).astype(np.float32))
    labels = np.array([[0, 1, -1, 2], [-1, -1, -1, -1], [4, 3, 2, 1]], np.int32)
    each = losses.softmax_cross_entropy(
        Array(logits.numpy().reshape(12, 5)), Array(np.maximum(labels, 0).reshape(12))
    ).numpy().reshape(3, 4)  # fmt: skip
    expected = [each[0, [0, 1, 3]].mean(), 0.0, each[2].mean()]
    found = losses.softmax_cross_entropy(logits, Array(labels), ignore=-1)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
    flat = losses.softmax_cross_entropy(Array(logits.numpy()[:, 0]), Array(labels[:, 0]), ignore=-1)
    np.testing.assert_allclose(flat.numpy(), [each[0, 0], 0.0, each[2, 0]], rtol=1e-5)
    hits = metrics.accuracy(logits, Array(labels), ignore=-1).numpy()
    right = logits.numpy().argmax(-1) == labels
    np.testing.assert_allclose(hits, [right[0, [0, 1, 3]].mean(), 0.0, right[2].mean()], rtol=1e-6)
