"""Losses of trees: where a prediction begins, and its gradient and hessian at each row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.trees.terms import LossName

Numbers: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class TreeLoss:
    """A loss of labels and margins (sums of leaves), ``[rows]`` each.

    start: labels to the margin before the first tree.
    slopes: labels and margins to gradients and hessians.
    each: labels and margins to the loss of each row.
    shown: margins to predictions.
    """

    start: Callable[[Numbers], float]
    slopes: Callable[[Numbers, Numbers], tuple[Numbers, Numbers]]
    each: Callable[[Numbers, Numbers], Numbers]
    shown: Callable[[Numbers], Numbers]


def _share(margins: Numbers) -> Numbers:
    return 1.0 / (1.0 + np.exp(-margins))


def _log_odds(labels: Numbers) -> float:
    share = float(np.clip(labels.mean(), 1e-6, 1 - 1e-6))
    return float(np.log(share / (1 - share)))


def _logistic(labels: Numbers, margins: Numbers) -> tuple[Numbers, Numbers]:
    share = _share(margins)
    return share - labels, share * (1 - share)


def _log_loss(labels: Numbers, margins: Numbers) -> Numbers:
    return np.logaddexp(0.0, margins) - labels * margins


def _squared(labels: Numbers, margins: Numbers) -> tuple[Numbers, Numbers]:
    return margins - labels, np.ones_like(labels)


LOSSES: Mapping[LossName, TreeLoss] = MappingProxyType(
    {
        "logistic": TreeLoss(_log_odds, _logistic, _log_loss, _share),
        "squared": TreeLoss(
            lambda labels: float(labels.mean()),
            _squared,
            lambda labels, margins: (labels - margins) ** 2,
            lambda margins: margins,
        ),
    }
)
