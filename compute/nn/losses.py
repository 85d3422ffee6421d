"""Losses. Each gives one value per example, [B]: how examples are weighed is not a loss's business."""

from collections.abc import Sequence
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, cast

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.absent import refuser
from coterie.compute.array import Array
from coterie.compute.nn.elsewhere import LOSSES
from coterie.compute.nn.module import refuse_shape
from coterie.compute.source import operation, user_source
from coterie.errors import InputError


@operation
def softmax_cross_entropy(
    logits: Array,
    labels: Array,
    *,
    class_weights: Sequence[float] | None = None,
    label_smoothing: float = 0.0,
    ignore: int | None = None,
) -> Array:
    """-log softmax(logits)[label], meaned over all axes but the first, [B].

    logits float32[B, ..., K]; labels int32[B, ...] in 0 .. K - 1: one for each example, or one for each position of a
    sequence. The largest is subtracted first, so nothing overflows, and the loss is exact to rounding however large
    the logits are; it is infinite where the label's own is lower by more than float32 can say. A logit of -inf rules
    its class out. class_weights: K numbers of at least 0, by which the loss of each class is multiplied; the mean over
    a batch still divides by its examples, where PyTorch divides by the sum of their weights. label_smoothing: the part
    ε in 0 .. 1 of each label that is spread evenly over all K classes, as PyTorch does it. ignore: the label of
    positions that do not count, such as the filling of short sequences; an example's mean is over the others, and 0
    where there is none.
    Give options by ``functools.partial``. Raises ShapeError for other shapes, InputError for other options.
    """
    _require_classes("softmax_cross_entropy", "logits", logits, labels)
    classes = logits.shape[-1]
    weights = _class_weights("softmax_cross_entropy", class_weights, classes, logits)
    _check_option("softmax_cross_entropy", label_smoothing=label_smoothing, most=1.0)
    shifted = logits - ops.stop_gradient(xp.max(logits, axis=-1, keepdims=True))
    chosen = ops.one_hot(labels, classes, dtype="bool")
    total = xp.log(xp.sum(xp.exp(shifted), axis=-1))
    # A product with zero would be NaN where another class's logit is infinitely low.
    loss = total - xp.sum(xp.where(chosen, shifted, 0.0), axis=-1)
    if weights is not None:
        loss = loss * _own(chosen, weights)
    if label_smoothing:
        others = xp.expand_dims(total, -1) - shifted
        spread = xp.mean(others if weights is None else weights * others, axis=-1)
        loss = (1.0 - label_smoothing) * loss + label_smoothing * spread
    if ignore is None:
        return _per_example(loss)
    counts = labels != ignore
    kept, inner = xp.where(counts, loss, 0.0), tuple(range(1, loss.ndim))
    if not inner:
        return kept
    return xp.sum(kept, axis=inner) / xp.maximum(xp.sum(xp.astype(counts, loss.dtype), axis=inner), 1.0)


@operation
def negative_log_likelihood(
    log_probabilities: Array, labels: Array, *, class_weights: Sequence[float] | None = None
) -> Array:
    """-log_probabilities[label], meaned over all axes but the first, [B]: for models that end in ``log_softmax``.

    log_probabilities float32[B, ..., K]; labels int32[B, ...] in 0 .. K - 1. class_weights: as in
    :func:`softmax_cross_entropy`, which takes logits and is the better choice where a model gives them. Raises
    ShapeError for other shapes, InputError for other weights.
    """
    _require_classes("negative_log_likelihood", "log-probabilities", log_probabilities, labels)
    classes = log_probabilities.shape[-1]
    weights = _class_weights("negative_log_likelihood", class_weights, classes, log_probabilities)
    chosen = ops.one_hot(labels, classes, dtype="bool")
    loss = -xp.sum(xp.where(chosen, log_probabilities, 0.0), axis=-1)
    return _per_example(loss if weights is None else loss * _own(chosen, weights))


@operation
def binary_cross_entropy_with_logits(logits: Array, labels: Array) -> Array:
    """-label log σ(logit) - (1 - label) log(1 - σ(logit)), meaned over all axes but the first, [B].

    logits float32[B, ...]; labels of the same shape, or [B] for logits [B, 1]; any dtype, values in [0, 1]. Finite for
    all finite logits. Raises ShapeError for other shapes.
    """
    logits, target = _aligned("binary_cross_entropy_with_logits", logits, labels)
    return _per_example(ops.softplus(logits) - logits * target)


@operation
def mean_squared_error(prediction: Array, target: Array) -> Array:
    """(prediction - target)², meaned over all axes but the first, [B].

    prediction float32[B, ...]; target of the same shape, or [B] for a prediction [B, 1]; any dtype. Raises ShapeError
    for other shapes.
    """
    prediction, target = _aligned("mean_squared_error", prediction, target)
    difference = prediction - target
    return _per_example(difference * difference)


@operation
def mean_absolute_error(prediction: Array, target: Array) -> Array:
    """|prediction - target|, meaned over all axes but the first, [B]: the L1 loss. Its gradient is 0 where both are
    equal.

    prediction float32[B, ...]; target of the same shape, or [B] for a prediction [B, 1]; any dtype. Raises ShapeError
    for other shapes.
    """
    prediction, target = _aligned("mean_absolute_error", prediction, target)
    return _per_example(xp.abs(prediction - target))


@operation
def huber(prediction: Array, target: Array, *, delta: float = 1.0) -> Array:
    """d²/2 for errors d = |prediction - target| up to delta, else delta (d - delta/2), meaned over all axes but the
    first, [B] (Huber 1964).

    prediction float32[B, ...]; target of the same shape, or [B] for a prediction [B, 1]; any dtype. delta: above 0; for
    another than 1 give it by ``functools.partial``. Raises ShapeError for other shapes, InputError for another delta.
    """
    _check_option("huber", delta=delta, most=1e30)
    if not delta:
        raise InputError(f"{user_source()}: huber: delta must be above 0, got {delta!r}.")
    prediction, target = _aligned("huber", prediction, target)
    error = xp.abs(prediction - target)
    near = xp.minimum(error, delta)
    return _per_example(near * (error - 0.5 * near))


def _require_classes(name: str, what: str, scores: Array, labels: Array) -> None:
    """Require scores [B, ..., K] and labels [B, ...]."""
    _require(
        scores.ndim >= 2 and labels.shape == scores.shape[:-1],
        name,
        f"{what} [B, K] and labels [B], or [B, T, K] and [B, T]",
        scores,
        labels,
        hint=f"The {what} come first; labels are numbers of classes: argmax(labels, axis=-1) of one-hot ones.",
    )


def _class_weights(name: str, given: Sequence[float] | None, classes: int, like: Array) -> Array | None:
    """One weight for each class, [K], in the dtype of the scores."""
    if given is None:
        return None
    weights = [float(value) for value in given]
    if len(weights) != classes or not all(isfinite(value) and value >= 0 for value in weights):
        raise InputError(
            f"{user_source()}: {name}: class_weights must be {classes} numbers of at least 0, got {list(given)!r}.",
            hint="Give one weight for each class, in the order of the classes.",
        )
    return xp.asarray(weights, dtype=like.dtype)


def _own(chosen: Array, weights: Array) -> Array:
    """The weight of each label's class."""
    return xp.sum(xp.where(chosen, weights, 0.0), axis=-1)


def _check_option(name: str, *, most: float, **numbers: float) -> None:
    """Require numbers in 0 .. most."""
    for option, value in numbers.items():
        if not isinstance(cast(object, value), Real) or not 0 <= value <= most:
            raise InputError(f"{user_source()}: {name}: {option} must be in 0 .. {most:g}, got {value!r}.")


def _aligned(name: str, prediction: Array, target: Array) -> tuple[Array, Array]:
    """Both in the prediction's dtype and one shape; [B] and [B, 1] mean the same, and would otherwise broadcast to [B,
    B] without a word.
    """
    if prediction.ndim == 2 and prediction.shape[1] == 1 and target.shape == prediction.shape[:1]:
        prediction = xp.reshape(prediction, target.shape)
    _require(
        prediction.ndim >= 1 and prediction.shape == target.shape,
        name,
        "two arrays of one shape [B, ...]",
        prediction,
        target,
        hint="Reshape one of them.",
    )
    return prediction, target if target.dtype == prediction.dtype else xp.astype(target, prediction.dtype)


def _per_example(values: Array) -> Array:
    return values if values.ndim == 1 else xp.mean(values, axis=tuple(range(1, values.ndim)))


def _require(fits: bool, name: str, wanted: str, *given: Array, hint: str) -> None:
    if not fits:
        refuse_shape(name, wanted, *given, hint=hint)


if not TYPE_CHECKING:  # for type checkers the functions above are all
    __getattr__ = refuser(__name__, LOSSES)
