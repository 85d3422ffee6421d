"""Losses, meaned over the batch unless ``reduction`` says "sum" or "none"."""

from coterie.compute import nn, ops
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.mindspore.cell import Cell
from coterie.errors import ArgumentValueError, InputError


class Loss(Cell):
    """A loss of one number per element, and how these are joined."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ArgumentValueError(f"There is no reduction {reduction!r}.", hint="Choose mean, sum or none.")
        self.reduction = reduction

    def values(self, logits: Array, labels: Array) -> Array:
        """One number per element, or per row, that is not joined yet."""
        raise InputError(f"{type(self).__name__} has no values.", hint="Define values(self, logits, labels).")

    def construct(self, logits: Array, labels: Array) -> Array:
        return self.joined(self.values(logits, labels))

    def joined(self, values: Array) -> Array:
        """The mean or the sum of all, or all."""
        if self.reduction == "none":
            return values
        return cnp.mean(values) if self.reduction == "mean" else cnp.sum(values)


class CrossEntropyLoss(Loss):
    """-log softmax(logits)[label]: logits [N, K], labels int[N], or probabilities [N, K]. Rows labelled
    ``ignore_index`` count for nothing, in the mean neither.
    """

    def __init__(self, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.ignore_index = ignore_index

    def values(self, logits: Array, labels: Array) -> Array:
        if labels.type.is_float:
            return -cnp.sum(labels * ops.log_softmax(logits), axis=-1)
        counted = labels != self.ignore_index
        rows = nn.losses.softmax_cross_entropy(logits, cnp.astype(cnp.where(counted, labels, 0), "int32"))
        return cnp.where(counted, rows, 0.0)

    def construct(self, logits: Array, labels: Array) -> Array:
        values = self.values(logits, labels)
        if labels.type.is_float or self.reduction != "mean":
            return self.joined(values)
        return cnp.sum(values) / cnp.sum(cnp.astype(labels != self.ignore_index, values.dtype))


class SoftmaxCrossEntropyWithLogits(Loss):
    """As CrossEntropyLoss: sparse takes labels int[N], else one-hot rows [N, K]. Not reduced unless asked."""

    def __init__(self, sparse: bool = False, reduction: str = "none") -> None:
        super().__init__(reduction)
        self.sparse = sparse

    def values(self, logits: Array, labels: Array) -> Array:
        if self.sparse:
            return nn.losses.softmax_cross_entropy(logits, cnp.astype(labels, "int32"))
        return -cnp.sum(cnp.astype(labels, logits.dtype) * ops.log_softmax(logits), axis=-1)


class BCEWithLogitsLoss(Loss):
    """-label log σ(logit) - (1 - label) log(1 - σ(logit)), elementwise."""

    def values(self, logits: Array, labels: Array) -> Array:
        return ops.softplus(logits) - logits * cnp.astype(labels, logits.dtype)


class MSELoss(Loss):
    """(logits - labels)², elementwise."""

    def values(self, logits: Array, labels: Array) -> Array:
        difference = logits - labels
        return difference * difference


class L1Loss(Loss):
    """|logits - labels|, elementwise."""

    def values(self, logits: Array, labels: Array) -> Array:
        return cnp.abs(logits - labels)
