"""Canary clients: made-up devices whose updates point where nothing else does, so that their mark on a model is told
(Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar: "One-shot Empirical Privacy Estimation for Federated Learning", ICLR
2024). Theirs are random directions, which are nearly orthogonal; these are rows of a cosine transform under secret
random signs, which are exactly so: no canary hides another, however many there are.
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass

import numpy as np

from coterie import errors
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.privacy.entropy import Entropy, draw
from coterie.protocol.arrays import Vector

FEWEST = 20
MOST = 100_000


@dataclass(frozen=True)
class Canaries:
    """So many canaries, drawn from a secret seed.

    included: the fair coin of each: is its update in the run?
    """

    seed: bytes
    included: tuple[bool, ...]

    @staticmethod
    def toss(count: int, *, entropy: Entropy = os.urandom) -> Canaries:
        """New canaries. Raises errors.ArgumentValueError for a count that proves nothing, or is too large."""
        if not FEWEST <= count <= MOST:
            raise errors.ArgumentValueError(f"An audit takes {FEWEST} to {MOST} canaries, not {count}.")
        coins = np.unpackbits(np.frombuffer(draw(entropy, (count + 7) // 8), np.uint8))[:count]
        return Canaries(draw(entropy, 32), tuple(bool(coin) for coin in coins))

    def direction(self, number: int, size: int) -> Vector:
        """A canary's unit vector, ``[size]``; those of two canaries are orthogonal.

        Raises errors.ArgumentValueError where there are not more numbers than canaries.
        """
        self.check(size)
        # Angles are multiples of π / (2 size), and whole turns are taken off while they are whole numbers.
        places = (2 * np.arange(size, dtype=np.int64) + 1) * (number + 1) % (4 * size)
        wave = np.cos(places * (math.pi / (2 * size)))
        return math.sqrt(2 / size) * self._own_signs()[number] * self._signs(size) * wave

    def scores(self, moved: Vector) -> Vector:
        """How much of each canary's direction is in a vector ``[size]``: ``[canaries]``.

        Raises errors.ArgumentValueError where there are not more numbers than canaries.
        """
        size, count = len(moved), len(self.included)
        self.check(size)
        spectrum = np.fft.rfft(self._signs(size) * moved, 2 * size)[1 : count + 1]
        turned = spectrum * np.exp(-0.5j * math.pi / size * np.arange(1, count + 1))
        return math.sqrt(2 / size) * self._own_signs() * turned.real

    def check(self, size: int) -> None:
        """Raises errors.ArgumentValueError for vectors of no more numbers than there are canaries."""
        if size <= len(self.included):
            raise errors.ArgumentValueError(
                f"{len(self.included)} canaries need a model of more weights than that, not {size}.",
                hint="Ask for fewer canaries.",
            )

    def _signs(self, size: int) -> Vector:
        """Of each number of a vector."""
        return _signs(hashlib.sha256(b"coterie/audit/v2/signs" + self.seed).digest(), size)

    def _own_signs(self) -> Vector:
        """Of each canary: so that no vector leans to the canaries' side of all directions together."""
        return _signs(hashlib.sha256(b"coterie/audit/v2/canaries" + self.seed).digest(), len(self.included))


def _signs(key: bytes, count: int) -> Vector:
    """±1, ``[count]``."""
    bits = np.unpackbits(NoiseSource(key).take((count + 7) // 8))[:count]
    return 2.0 * bits.astype(np.float64) - 1.0
