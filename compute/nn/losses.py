"""Losses. Each gives one value per example, [B]: how examples are weighed is not a loss's business."""

from typing import TYPE_CHECKING

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.absent import refuser
from coterie.compute.array import Array
from coterie.compute.nn.elsewhere import LOSSES
from coterie.compute.nn.module import refuse_shape
from coterie.compute.source import operation


@operation
def softmax_cross_entropy(logits: Array, labels: Array) -> Array:
    """-log softmax(logits)[label], meaned over all axes but the first, [B].

    logits float32[B, ..., K]; labels int32[B, ...] in 0 .. K - 1: one for each example, or one for each position of a
    sequence. The largest is subtracted first, so nothing overflows, and the loss is exact to rounding however large
    the logits are; it is infinite where the label's own is lower by more than float32 can say. A logit of -inf rules
    its class out. Raises ShapeError for other shapes.
    """
    _require(
        logits.ndim >= 2 and labels.shape == logits.shape[:-1],
        "softmax_cross_entropy",
        "logits [B, K] and labels [B], or [B, T, K] and [B, T]",
        logits,
        labels,
        hint="The logits come first; labels are numbers of classes: argmax(labels, axis=-1) of one-hot ones.",
    )
    shifted = logits - ops.stop_gradient(xp.max(logits, axis=-1, keepdims=True))
    chosen = ops.one_hot(labels, logits.shape[-1], dtype="bool")
    # A product with zero would be NaN where another class's logit is infinitely low.
    own = xp.sum(xp.where(chosen, shifted, 0.0), axis=-1)
    return _per_example(xp.log(xp.sum(xp.exp(shifted), axis=-1)) - own)


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
