"""Canary clients: made-up devices whose updates point where nothing else does, so that their mark on a model is told
(Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar: "One-shot Empirical Privacy Estimation for Federated Learning", ICLR
2024). In many dimensions random directions are as good as orthogonal to each other and to honest updates.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.privacy.audit.one_run import Audit, audit_scores
from coterie.privacy.dp.noise.source import Source
from coterie.privacy.secagg.entropy import Entropy, draw

Vector = npt.NDArray[np.float64]
FEWEST = 20
MOST = 100_000


@dataclass(frozen=True)
class Canaries:
    """So many canaries, drawn from a secret seed. included: the fair coin of each: is it a client of the run?"""

    seed: bytes
    included: tuple[bool, ...]

    @staticmethod
    def toss(count: int, *, entropy: Entropy = os.urandom) -> Canaries:
        """New canaries. Raises errors.ArgumentValueError for a count that proves nothing, or is too large."""
        if not FEWEST <= count <= MOST:
            raise errors.ArgumentValueError(f"An audit takes {FEWEST} to {MOST} canaries, not {count}.")
        coins = np.unpackbits(np.frombuffer(draw(entropy, (count + 7) // 8), np.uint8))[:count]
        return Canaries(draw(entropy, 32), tuple(bool(coin) for coin in coins))

    @property
    def clients(self) -> tuple[int, ...]:
        """The numbers of the canaries that are clients."""
        return tuple(number for number, there in enumerate(self.included) if there)

    def direction(self, number: int, size: int) -> Vector:
        """A canary's unit vector, ``[size]``: ±1/√size with random signs. Any two have an inner product near 0."""
        key = hashlib.sha256(b"coterie/audit/v1/canary" + self.seed + number.to_bytes(8, "big")).digest()
        signs = np.unpackbits(Source(key).take((size + 7) // 8))[:size]
        return (2.0 * signs - 1.0) / np.sqrt(size)

    def scores(self, moved: Vector) -> tuple[float, ...]:
        """How much each canary's direction is in the way that a model has gone, ``moved`` ``[size]``: the statistic of
        whom sees the first version and the last.
        """
        return tuple(float(self.direction(number, len(moved)) @ moved) for number in range(len(self.included)))

    def audit(self, moved: Vector, delta: float, *, claimed: float | None = None, guesses: int | None = None) -> Audit:
        """What the way of a model proves of the run's ε. guesses: see `audit_scores`."""
        return audit_scores(self.scores(moved), self.included, delta, claimed=claimed, guesses=guesses)
