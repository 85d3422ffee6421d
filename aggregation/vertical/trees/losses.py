"""Losses of trees: where a prediction begins, and its gradient and hessian at each row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from coterie.aggregation.vertical.tables import RowNumbers, TableLabelKind
from coterie.protocol.session_job import TreeLossName


@dataclass(frozen=True)
class TreeLoss:
    """A loss of labels and margins (sums of leaves), ``[rows]`` each.

    start: labels to the margin before the first tree.
    slopes: labels and margins to gradients and hessians.
    each: labels and margins to the loss of each row.
    shown: margins to predictions.
    labels: what labels must be.
    """

    start: Callable[[RowNumbers], float]
    slopes: Callable[[RowNumbers, RowNumbers], tuple[RowNumbers, RowNumbers]]
    each: Callable[[RowNumbers, RowNumbers], RowNumbers]
    shown: Callable[[RowNumbers], RowNumbers]
    labels: TableLabelKind


def _share(margins: RowNumbers) -> RowNumbers:
    return 1.0 / (1.0 + np.exp(-margins))


def _log_odds(labels: RowNumbers) -> float:
    share = float(np.clip(labels.mean(), 1e-6, 1 - 1e-6))
    return float(np.log(share / (1 - share)))


def _logistic(labels: RowNumbers, margins: RowNumbers) -> tuple[RowNumbers, RowNumbers]:
    share = _share(margins)
    return share - labels, share * (1 - share)


def _log_loss(labels: RowNumbers, margins: RowNumbers) -> RowNumbers:
    return np.logaddexp(0.0, margins) - labels * margins


def _squared(labels: RowNumbers, margins: RowNumbers) -> tuple[RowNumbers, RowNumbers]:
    return margins - labels, np.ones_like(labels)


LOSSES: Mapping[TreeLossName, TreeLoss] = MappingProxyType(
    {
        "logistic": TreeLoss(_log_odds, _logistic, _log_loss, _share, "binary"),
        "squared": TreeLoss(
            lambda labels: float(labels.mean()),
            _squared,
            lambda labels, margins: (labels - margins) ** 2,
            lambda margins: margins,
            "number",
        ),
    }
)
