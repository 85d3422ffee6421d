"""Losses, meaned over the batch unless ``reduction`` says "sum" or "none"."""

from coterie.compute import nn, ops
from coterie.compute import numpy as cnp
from coterie.compute.array import Array
from coterie.compute.mindspore.cell import Cell
from coterie.errors import ArgumentValueError


class _Loss(Cell):
    """A loss of one number per element, and how these are joined."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ArgumentValueError(f"There is no reduction {reduction!r}.", hint="Choose mean, sum or none.")
        self.reduction = reduction

    def joined(self, values: Array) -> Array:
        """The mean or the sum of all, or all."""
        if self.reduction == "none":
            return values
        return cnp.mean(values) if self.reduction == "mean" else cnp.sum(values)


class CrossEntropyLoss(_Loss):
    """-log softmax(logits)[label]: logits [N, K], labels int[N], or probabilities [N, K]. Rows labelled
    ``ignore_index`` count for nothing, in the mean neither.
    """

    def __init__(self, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.ignore_index = ignore_index

    def construct(self, logits: Array, labels: Array) -> Array:
        if labels.type.is_float:
            return self.joined(-cnp.sum(labels * ops.log_softmax(logits), axis=-1))
        counted = labels != self.ignore_index
        rows = nn.losses.softmax_cross_entropy(logits, cnp.astype(cnp.where(counted, labels, 0), "int32"))
        values = cnp.where(counted, rows, 0.0)
        if self.reduction != "mean":
            return self.joined(values)
        return cnp.sum(values) / cnp.sum(cnp.astype(counted, values.dtype))


class SoftmaxCrossEntropyWithLogits(_Loss):
    """As CrossEntropyLoss: sparse takes labels int[N], else one-hot rows [N, K]. Not reduced unless asked."""

    def __init__(self, sparse: bool = False, reduction: str = "none") -> None:
        super().__init__(reduction)
        self.sparse = sparse

    def construct(self, logits: Array, labels: Array) -> Array:
        if self.sparse:
            return self.joined(nn.losses.softmax_cross_entropy(logits, cnp.astype(labels, "int32")))
        return self.joined(-cnp.sum(cnp.astype(labels, logits.dtype) * ops.log_softmax(logits), axis=-1))


class BCEWithLogitsLoss(_Loss):
    """-label log σ(logit) - (1 - label) log(1 - σ(logit)), elementwise."""

    def construct(self, logits: Array, labels: Array) -> Array:
        return self.joined(ops.softplus(logits) - logits * cnp.astype(labels, logits.dtype))


class MSELoss(_Loss):
    """(logits - labels)², elementwise."""

    def construct(self, logits: Array, labels: Array) -> Array:
        difference = logits - labels
        return self.joined(difference * difference)


class L1Loss(_Loss):
    """|logits - labels|, elementwise."""

    def construct(self, logits: Array, labels: Array) -> Array:
        return self.joined(cnp.abs(logits - labels))
