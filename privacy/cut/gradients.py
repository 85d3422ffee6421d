"""Noise on the gradients that go back to roles with features, which tell labels: those of the rarer class are longer,
and those of two classes point apart (Li et al., "Label Leakage and Protection in Two-party Split Learning", ICLR 2022,
arXiv:2102.08504).

None of it is differential privacy: it makes known attacks fail, and is measured by them (`coterie.privacy.audit.cut`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.privacy.dp.noise import gaussian
from coterie.protocol.arrays import Matrix
from coterie.protocol.cut import GradientKind, GradientNoise
from coterie.randomness import derive

_GRID = 129
"""Steps in which the budget of ``marvell`` is shared out, each way."""


@dataclass(frozen=True)
class _Batch:
    """Gradients of the rows that count, ``[B, w]``; whether each row is of class 1; a key for draws."""

    rows: Matrix
    positive: npt.NDArray[np.bool_]
    key: bytes

    def normals(self, label: str, *shape: int) -> Matrix:
        """Standard normal numbers."""
        return gaussian.noise(derive(self.key, label), int(np.prod(shape)), 1.0).reshape(shape)


def protect(
    gradients: npt.NDArray[Any], labels: npt.NDArray[Any], noise: GradientNoise, key: bytes
) -> npt.NDArray[np.float32]:
    """Gradients ``[B, w]`` of rows that count, as they may be sent.

    labels: of these rows, ``[B]``; 1 is the one class and everything else the other.
    key: 32 bytes that nobody else knows, for this batch alone; the same key gives the same noise.
    """
    batch = _Batch(gradients.astype(np.float64), labels.reshape(len(gradients), -1)[:, 0] == 1, key)
    return _KINDS[noise.kind](batch, noise.scale).astype(np.float32) if gradients.size else gradients


def _norms(rows: Matrix) -> Matrix:
    return np.sqrt((rows * rows).sum(axis=1, keepdims=True))


def _max_norm(batch: _Batch, scale: float) -> Matrix:
    """g + g · z · √(longest² / ‖g‖² - 1) with z standard normal: its expected squared norm is longest² for every row.
    A row of zeros has no direction, and gets one at random.
    """
    rows, norms = batch.rows, _norms(batch.rows)
    longest = norms.max()
    anywhere = batch.normals("directions", *rows.shape)
    unit = np.where(norms > 0, rows, anywhere)
    unit = unit / np.maximum(_norms(unit), np.finfo(np.float64).tiny)
    along = np.sqrt(np.maximum(longest * longest - norms * norms, 0.0)) * batch.normals("lengths", len(rows), 1)
    return rows + unit * along


def _gaussian(batch: _Batch, scale: float) -> Matrix:
    """Isotropic, of expected squared norm (scale · longest)²."""
    rows = batch.rows
    deviation = scale * _norms(rows).max() / np.sqrt(rows.shape[1])
    return rows + deviation * batch.normals("isotropic", *rows.shape)


def _marvell(batch: _Batch, scale: float) -> Matrix:
    """Noise of each class along the line between the classes' means, and across it, of the variances that `_shared`
    finds. A batch of one class tells it whole whatever its shape: it gets isotropic noise of the longest norm.
    """
    rows, positive = batch.rows, batch.positive
    if positive.all() or not positive.any():
        return _gaussian(batch, 1.0)
    means = [rows[positive == side].mean(axis=0) for side in (False, True)]
    spread = [((rows[positive == side] - means[side]) ** 2).mean() for side in (False, True)]
    between = means[1] - means[0]
    distance = float(between @ between)
    if distance <= 0:
        return rows
    line = between / np.sqrt(distance)
    variances = _shared(positive.mean(), rows.shape[1], float(spread[0]), float(spread[1]), distance, scale * distance)
    chosen = np.array(variances)[positive.astype(int)]
    across = batch.normals("across", *rows.shape)
    across -= (across @ line)[:, None] * line
    along = batch.normals("along", len(rows), 1) * line
    return rows + np.sqrt(chosen[:, :1]) * along + np.sqrt(chosen[:, 1:]) * across


def _shared(
    share: float, width: int, u: float, v: float, distance: float, power: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """For each class the variance of noise along the line and across it, so that KL(0‖1) + KL(1‖0) of normal gradients
    is least: of variance u and v in every direction, with means √distance apart.

    share: of class 1. power: the expected squared norm of the noise.
    Across the line the two become alike when the narrower one is widened to the other; what that leaves of the power is
    for the line. Both splits are searched on an even grid.
    """
    others, smallest = width - 1, 1e-12 * distance
    u, v = max(u, smallest), max(v, smallest)
    weight = (1 - share, share)
    narrow = 0 if u < v else 1
    used = np.linspace(0.0, min(power, abs(v - u) * weight[narrow] * others), _GRID)[:, None]
    widened = used / (weight[narrow] * others) if others else used
    across = [np.zeros_like(used), np.zeros_like(used)]
    across[narrow] = widened
    part = np.linspace(0.0, 1.0, _GRID)[None, :]
    along = [(power - used) * part / weight[0], (power - used) * (1 - part) / weight[1]]
    b0, b1, a0, a1 = across[0] + u, across[1] + v, along[0] + u, along[1] + v
    apart = others * (b0 / b1 + b1 / b0) + (a0 + distance) / a1 + (a1 + distance) / a0
    i, j = np.unravel_index(int(apart.argmin()), apart.shape)
    return (
        (float(along[0][i, j]), float(across[0][i, 0])),
        (float(along[1][i, j]), float(across[1][i, 0])),
    )


_KINDS: Mapping[GradientKind, Callable[[_Batch, float], Matrix]] = {
    "max_norm": _max_norm,
    "gaussian": _gaussian,
    "marvell": _marvell,
}
