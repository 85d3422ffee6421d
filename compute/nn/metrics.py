"""Metrics: one number per example, [B], so that they add over batches and clients."""

from typing import TYPE_CHECKING

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.absent import refuser
from coterie.compute.array import Array
from coterie.compute.nn.elsewhere import METRICS
from coterie.compute.nn.losses import mean_squared_error
from coterie.compute.nn.module import refuse_shape


def accuracy(logits: Array, labels: Array, *, ignore: int | None = None) -> Array:
    """1 where the largest logit is the label's, else 0, meaned over all axes but the first, [B]; where k logits tie for
    the largest, 1/k for each of them.

    logits [B, K] and labels int32[B], or [B, T, K] and [B, T]. So a model that says the same of every class scores 1/K,
    not 1. A row with NaN scores 0. ignore: the label of positions that do not count, such as filling; an example's mean
    is over the others, and 0 where there is none.
    """
    if logits.ndim < 2 or labels.shape != logits.shape[:-1]:
        hint = "The logits come first; labels are numbers of classes."
        refuse_shape("accuracy", "logits [B, K] and labels [B]", logits, labels, hint=hint)
    largest = xp.astype(xp.equal(logits, xp.max(logits, axis=-1, keepdims=True)), logits.dtype)
    hits = xp.sum(largest * ops.one_hot(labels, logits.shape[-1], dtype=logits.dtype.name), axis=-1)
    share = hits / xp.maximum(xp.sum(largest, axis=-1), 1.0)
    inner = tuple(range(1, share.ndim))
    if ignore is None:
        return xp.mean(share, axis=inner) if inner else share
    counted = xp.astype(labels != ignore, share.dtype)
    kept = share * counted
    return xp.sum(kept, axis=inner) / xp.maximum(xp.sum(counted, axis=inner), 1.0) if inner else kept


def binary_accuracy(logits: Array, labels: Array) -> Array:
    """1 where the logit's sign says the label (above 0 means 1), else 0, meaned over all axes but the first, [B].

    logits [B, ...] and labels of the same shape, of 0 and 1; or logits [B, 1] and labels [B].
    """
    if not labels.ndim or (logits.shape != labels.shape and (labels.ndim, logits.shape) != (1, (*labels.shape, 1))):
        wanted = "logits [B, ...] and labels of one shape"
        refuse_shape("binary_accuracy", wanted, logits, labels, hint="The logits come first.")
    said = xp.greater(xp.reshape(logits, labels.shape), 0.0)
    right = xp.astype(xp.equal(xp.astype(said, logits.dtype), xp.astype(labels, logits.dtype)), logits.dtype)
    return right if right.ndim == 1 else xp.mean(right, axis=tuple(range(1, right.ndim)))


def squared_error(prediction: Array, target: Array) -> Array:
    """(prediction - target)², meaned over all axes but the first, [B]; shapes as in ``losses.mean_squared_error``."""
    return mean_squared_error(prediction, target)


def absolute_error(prediction: Array, target: Array) -> Array:
    """|prediction - target| of a regression with one output, [B]. prediction [B] or [B, 1]; target [B]."""
    if prediction.shape not in (target.shape, (*target.shape, 1)) or target.ndim != 1:
        hint = "The prediction comes first; one number for each example."
        refuse_shape("absolute_error", "[B] or [B, 1] and [B]", prediction, target, hint=hint)
    return xp.abs(xp.reshape(prediction, target.shape) - xp.astype(target, prediction.dtype))


if not TYPE_CHECKING:  # for type checkers the functions above are all
    __getattr__ = refuser(__name__, METRICS)
