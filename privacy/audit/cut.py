"""Attacks on what crosses the cut of a split network: labels from gradients, columns from embeddings.

    norm         gradients of the rarer class are longer, since the network is less sure of it
    direction    gradients of one class point one way: whoever knows one row of the class compares with its gradient
    columns      from rows whose columns are known, a linear map from embeddings to columns, tried on the others

The first two are those of Li et al. (ICLR 2022, arXiv:2102.08504), who measure them by the area under the curve of
"this row is of class 1": 1 tells all labels, 0.5 none. A protection is worth what it does to all of them; a stronger
attack may do better.
"""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.privacy.audit.membership import auc
from coterie.protocol.arrays import Matrix

_KNOWN = 32
"""Rows of class 1 that the direction attack is tried with, at most: each alone, and the mean is told."""
_RIDGE = 1e-6


@dataclass(frozen=True)
class LabelLeak:
    """How well gradients tell labels.

    rows: how many were looked at, of them `positive` of class 1.
    norm, direction: areas under the curve of the two attacks.
    """

    rows: int
    positive: int
    norm: float
    direction: float


def norm_scores(gradients: npt.NDArray[Any]) -> Matrix:
    """The norm of each gradient, ``[N, w]`` → ``[N]``."""
    rows = gradients.astype(np.float64)
    return np.sqrt((rows * rows).sum(axis=1))


def direction_scores(gradients: npt.NDArray[Any], known: npt.NDArray[Any]) -> Matrix:
    """The cosine of each gradient ``[N, w]`` with that of a row whose label is known, ``[w]``; 0 for one of zeros."""
    rows, other = gradients.astype(np.float64), known.astype(np.float64)
    size = norm_scores(gradients) * np.sqrt(other @ other)
    return (rows @ other) / np.where(size > 0, size, 1.0)


def label_leak(gradients: npt.NDArray[Any], labels: npt.NDArray[Any]) -> LabelLeak:
    """Both attacks on gradients ``[N, w]``, judged by the labels ``[N]``; 1 is the one class, the rest the other.

    Whoever attacks knows which class is the rarer, so an area of the norm below ½ is turned round.
    Raises errors.ArgumentValueError for gradients of other rows, or without two rows of each class.
    """
    positive = labels.reshape(-1) == 1
    if gradients.ndim != 2 or len(gradients) != len(positive) or min(positive.sum(), (~positive).sum()) < 2:
        raise errors.ArgumentValueError(
            "label_leak needs gradients [N, w] and as many labels, with two rows of each class at least."
        )
    norms = norm_scores(gradients)
    found = auc(norms[positive].tolist(), norms[~positive].tolist())
    places = np.flatnonzero(positive)
    tried = places[np.linspace(0, len(places) - 1, min(_KNOWN, len(places))).astype(int)]
    areas: list[float] = []
    for place in tried:
        scores = direction_scores(gradients, gradients[place])
        others = positive.copy()
        others[place] = False
        areas.append(auc(scores[others].tolist(), scores[~positive].tolist()))
    return LabelLeak(
        rows=len(positive),
        positive=int(positive.sum()),
        norm=max(found, 1 - found),
        direction=float(np.mean(areas)),
    )


def column_leak(embeddings: npt.NDArray[Any], columns: npt.NDArray[Any], *, known: int) -> float:
    """How much of the columns ``[N, c]`` a linear map from the embeddings ``[N, w]`` tells: the share of their variance
    (R²) in rows whose columns it has not seen; 1 is all, 0 no more than the mean does, and below is worse.

    known: how many rows, the first ones, the map is made of.
    Raises errors.ArgumentValueError where no two rows are left to try it on.
    """
    count = len(columns)
    if embeddings.ndim != 2 or len(embeddings) != count or not 2 <= known <= count - 2:
        raise errors.ArgumentValueError(
            "column_leak needs embeddings [N, w] and columns [N, c] of the same rows, of which 2 to N - 2 are known."
        )
    x = np.concatenate([embeddings.astype(np.float64), np.ones((count, 1))], axis=1)
    y = columns.astype(np.float64).reshape(count, -1)
    seen, left = slice(None, known), slice(known, None)
    squares = x[seen].T @ x[seen]
    ridge = _RIDGE * np.trace(squares) / len(squares) * np.eye(len(squares))
    weights = cast(Matrix, np.linalg.solve(squares + ridge, x[seen].T @ y[seen]))
    wrong = float(((y[left] - x[left] @ weights) ** 2).sum())
    spread = float(((y[left] - y[seen].mean(axis=0)) ** 2).sum())
    return 1 - wrong / spread if spread > 0 else 0.0
