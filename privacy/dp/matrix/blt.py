"""Buffered linear Toeplitz matrices: c_0 = 1, c_t = Σ_j scale_j · decay_j^(t − 1). A few numbers of memory for each
weight give almost the noise of the best Toeplitz matrix, whatever the number of rounds.

Sources: Dvijotham, McMahan, Pillutla, Steinke, Thakurta, "Efficient and Near-Optimal Noise Generation for Streaming
Differential Privacy" (FOCS 2024); McMahan, Xu, Zhang, "A Hassle-free Algorithm for Strong Differential Privacy in
Federated Learning Systems" (2024), for repeated participation.

The first column of the square root is the moments of the arcsine law, c_t = E[θ^t], so a few atoms of that law are a
good start; a downhill simplex (Nelder and Mead, 1965) then lowers error × sensitivity for the rounds, the separation
and the participations that will be.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from coterie.privacy.dp.matrix.toeplitz import Column, mean_error, participation
from coterie.protocol.arrays import Vector


@dataclass(frozen=True)
class Buffers:
    """The buffers of a BLT mechanism.

    decay: in (0, 1).
    scale: positive, at most 1 together, so that coefficients never rise.
    """

    decay: tuple[float, ...]
    scale: tuple[float, ...]

    def column(self, rounds: int) -> Column:
        """The first column of C."""
        powers = np.power(np.array(self.decay), np.arange(rounds - 1)[:, None])
        return np.concatenate([np.ones(1), powers @ np.array(self.scale)])

    def inverse_column(self, rounds: int) -> Column:
        """The first column of C⁻¹, which has as many buffers: their decays are the eigenvalues of
        diag(decay) − √scale √scaleᵀ, a symmetric matrix.
        """
        root = np.sqrt(np.array(self.scale))
        values, vectors = np.linalg.eigh(np.diag(self.decay) - np.outer(root, root))
        powers = np.power(values, np.arange(rounds - 1)[:, None])
        return np.concatenate([np.ones(1), -(powers @ (vectors.T @ root) ** 2)])


@lru_cache(maxsize=64)
def fitted(rounds: int, buffers: int, min_separation: int, participations: int | None) -> Buffers:
    """Buffers whose error × sensitivity is (locally) the least, for the mean over all prefix sums. The same arguments
    give the same buffers on one machine; what is run is kept as numbers (see `factorisation`).
    """

    def loss(point: Vector) -> float:
        found = _buffers(point)
        if sum(found.scale) > 1 or max(found.decay) >= 1 - 1e-12:
            return math.inf
        added = participation(found.column(rounds), min_separation=min_separation, participations=participations)
        return math.log(mean_error(found.inverse_column(rounds))) + math.log(float(np.linalg.norm(added)))

    return _buffers(_simplex_minimum(loss, _start(rounds, buffers)))


def _buffers(point: Vector) -> Buffers:
    """From free numbers: the logits of the decays, then the logarithms of the scales."""
    half = len(point) // 2
    decay = 1 / (1 + np.exp(-np.clip(point[:half], -30, 30)))
    return Buffers(tuple(decay.tolist()), tuple(np.exp(np.clip(point[half:], -60, 0)).tolist()))


def _start(rounds: int, buffers: int) -> Vector:
    """Atoms of the arcsine law: 1 − θ in ranges whose ends are evenly spaced in the logarithm, from 1 to 1 / rounds."""
    ends = np.exp(-math.log(2 * rounds + 1) * np.arange(buffers + 1) / buffers)
    masses = np.diff(2 / math.pi * np.arcsin(np.sqrt(ends[::-1])))[::-1]
    middles = 1 - np.sqrt(ends[:-1] * ends[1:])
    scale = masses * middles * 0.98
    return np.concatenate([np.log(middles / (1 - middles)), np.log(scale)])


_STEPS = 250
"""Of the simplex, for each number that is sought."""


def _simplex_minimum(loss: Callable[[Vector], float], start: Vector) -> Vector:
    """The lowest point that a downhill simplex finds from `start`."""
    size = len(start)
    points = np.concatenate([start[None], start + 0.3 * np.eye(size)])
    losses = np.array([loss(point) for point in points])
    for _ in range(_STEPS * size):
        order = np.argsort(losses, kind="stable")
        points, losses = points[order], losses[order]
        if losses[-1] - losses[0] < 1e-9:
            break
        centre = points[:-1].mean(0)
        tried = centre + (centre - points[-1])
        value = loss(tried)
        if value < losses[0]:
            further = centre + 2 * (centre - points[-1])
            beyond = loss(further)
            points[-1], losses[-1] = (further, beyond) if beyond < value else (tried, value)
        elif value < losses[-2]:
            points[-1], losses[-1] = tried, value
        else:
            outside = value < losses[-1]
            inner = centre + 0.5 * ((tried if outside else points[-1]) - centre)
            found = loss(inner)
            if found < min(value, losses[-1]):
                points[-1], losses[-1] = inner, found
            else:
                points[1:] = points[0] + 0.5 * (points[1:] - points[0])
                losses[1:] = [loss(point) for point in points[1:]]
    return points[int(np.argmin(losses))]
