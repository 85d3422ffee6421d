"""Links of linear models, each as a sum of products of what either role knows.

With a the feature owner's part of a row's score and b the label owner's, the residual is

    mean(a + b) - label  =  constant(b, label) + Σ_k left_k(a) right_k(b)

so that the label owner can encrypt ``constant`` and ``right``, and the feature owner, who knows ``left``, completes the
sum without seeing any of it. For "linear" and "poisson" this is exact. For "logistic", mean is interpolated in a at
Chebyshev's points (Trefethen, "Approximation Theory and Approximation Practice", SIAM 2013, chapters 2 to 4): right_k
is the coefficient of the k-th Chebyshev polynomial, which the label owner computes for its own b. For every b the error
is below 0.011 where |a| ≤ 5; beyond, a counts as ±5 while the model is fitted.

left_k are whole numbers from 0 on, in units of 2**-LEFT_BITS, since they become exponents.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.tables import RowNumbers, TableLabelKind
from coterie.protocol.session_job import LinkName

LEFT_BITS: Final = 12
_LOGISTIC_REACH, _LOGISTIC_TERMS = 5.0, 8
_LINEAR_REACH, _POISSON_REACH = 16.0, 4.0
_FARTHEST = 300.0
"""Scores of rows that are far from all others count as this far, so that no power of e is infinite."""


@dataclass(frozen=True)
class LinearLink:
    """A link. ``n`` rows, K products.

    labels: what labels must be.
    products: K.
    most: the largest ``left``.
    left: the feature owner's scores ``[n]`` to whole numbers ``[n, K]``.
    right: the label owner's scores and labels ``[n]`` to ``[n, 1 + K]``, the constant first.
    curvature: labels to what the second derivative of the loss by a score is about, or at most.
    start: labels to the score before the first step.
    unit: labels to what they are moved by and divided by while the model is fitted.
    mean: scores to predictions.
    """

    labels: TableLabelKind
    products: int
    most: int
    left: Callable[[RowNumbers], NDArray[np.int64]]
    right: Callable[[RowNumbers, RowNumbers], NDArray[np.float64]]
    curvature: Callable[[RowNumbers], float]
    start: Callable[[RowNumbers], float]
    unit: Callable[[RowNumbers], tuple[float, float]]
    mean: Callable[[RowNumbers], RowNumbers]


def _whole(values: RowNumbers) -> NDArray[np.int64]:
    return np.rint(np.ldexp(values, LEFT_BITS)).astype(np.int64)


def _share(scores: RowNumbers) -> RowNumbers:
    return 1.0 / (1.0 + np.exp(-np.maximum(scores, -_FARTHEST)))


def _expected(scores: RowNumbers) -> RowNumbers:
    return np.exp(np.minimum(scores, _FARTHEST))


def _chebyshev(places: RowNumbers) -> NDArray[np.float64]:
    """Of each place between -1 and 1 the Chebyshev polynomials of degrees 0 to K, ``[places, K + 1]``."""
    return np.cos(np.outer(np.arccos(places), np.arange(_LOGISTIC_TERMS)))


def _logistic_left(scores: RowNumbers) -> NDArray[np.int64]:
    # One more than the polynomial, which is -1 at least.
    return _whole(1.0 + _chebyshev(np.clip(scores / _LOGISTIC_REACH, -1.0, 1.0))[:, 1:])


def _logistic_right(scores: RowNumbers, labels: RowNumbers) -> NDArray[np.float64]:
    count = _LOGISTIC_TERMS
    points = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    values = _share(scores[:, None] + _LOGISTIC_REACH * points[None, :])
    found = 2.0 / count * (values @ _chebyshev(points))
    # The one more of `_logistic_left` is taken off here.
    found[:, 0] = found[:, 0] / 2.0 - found[:, 1:].sum(axis=1) - labels
    return found


def _log_odds(labels: RowNumbers) -> float:
    share = float(np.clip(labels.mean(), 1e-6, 1 - 1e-6))
    return float(np.log(share / (1 - share)))


def _as_they_are(labels: RowNumbers) -> tuple[float, float]:
    return 0.0, 1.0


def _linear_right(scores: RowNumbers, labels: RowNumbers) -> NDArray[np.float64]:
    return np.stack([scores - _LINEAR_REACH - labels, np.ones_like(scores)], axis=1)


def _poisson_right(scores: RowNumbers, labels: RowNumbers) -> NDArray[np.float64]:
    return np.stack([-labels, _expected(scores)], axis=1)


LINKS: Final[Mapping[LinkName, LinearLink]] = MappingProxyType(
    {
        "logistic": LinearLink(
            "binary",
            _LOGISTIC_TERMS - 1,
            2 << LEFT_BITS,
            _logistic_left,
            _logistic_right,
            lambda labels: 0.25,
            _log_odds,
            _as_they_are,
            _share,
        ),
        "linear": LinearLink(
            "number",
            1,
            int(2 * _LINEAR_REACH) << LEFT_BITS,
            lambda scores: _whole(np.clip(scores, -_LINEAR_REACH, _LINEAR_REACH) + _LINEAR_REACH)[:, None],
            _linear_right,
            lambda labels: 1.0,
            lambda labels: 0.0,
            lambda labels: (float(labels.mean()), float(labels.std())),
            lambda scores: scores,
        ),
        "poisson": LinearLink(
            "count",
            1,
            int(np.exp(_POISSON_REACH) + 1) << LEFT_BITS,
            lambda scores: _whole(np.exp(np.clip(scores, -_POISSON_REACH, _POISSON_REACH)))[:, None],
            _poisson_right,
            lambda labels: float(labels.mean()),
            lambda labels: float(np.log(max(labels.mean(), 1e-6))),
            _as_they_are,
            _expected,
        ),
    }
)
