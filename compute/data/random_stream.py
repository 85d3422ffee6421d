"""Random numbers of one row, found by counting instead of drawn in turn."""

from math import prod
from typing import Any

import numpy as np

from coterie.compute.ir import NDArray

_BITS = 53
_WORD = (1 << 64) - 1
# Of Philox4x64: the factors of a round, what the keys grow by between rounds, and the number of rounds.
_FACTORS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_GROWTH = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_BLOCK = 4


class RandomStream:
    """Numbers that depend on a seed, a step of the pipeline, a pass and a position, and on nothing else.

    So they are the same whichever worker asks, in whatever order, and after every resumption. They are the raw words of
    Philox (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011) under the key (seed, step), from the
    counter (position, pass) on. Single numbers are computed here, several times as fast as NumPy makes a generator for
    them; arrays by NumPy.
    """

    __slots__ = ("_block", "_counter", "_drawn", "_key")

    def __init__(self, seed: int, step: int, epoch: int, position: int) -> None:
        self._key = (seed % 2**64, step)
        self._counter = (int(position), int(epoch))
        self._drawn = 0
        self._block: tuple[int, ...] = ()

    def words(self, count: int) -> NDArray:
        """The next raw words, uint64 [count]."""
        block, used = divmod(self._drawn, _BLOCK)
        key, counter = np.array(self._key, np.uint64), np.array((block, 0, *self._counter), np.uint64)
        words = np.random.Philox(key=key, counter=counter).random_raw(used + count)[used:]
        self._drawn += count
        self._block = ()
        return words

    def word(self) -> int:
        """The next raw word."""
        block, used = divmod(self._drawn, _BLOCK)
        if not used or not self._block:
            # NumPy counts on before it makes a block.
            self._block = _philox(self._key, (block + 1, 0, *self._counter))
        self._drawn += 1
        return self._block[used]

    def uniform(self, low: float = 0.0, high: float = 1.0, shape: tuple[int, ...] = ()) -> Any:
        """Numbers in [low, high): a float for the shape ``()``, else float64 of that shape."""
        if shape == ():
            return (self.word() >> (64 - _BITS)) * 2.0**-_BITS * float(high - low) + float(low)
        numbers = (self.words(prod(shape)) >> np.uint64(64 - _BITS)) * 2.0**-_BITS * (high - low) + low
        return numbers.reshape(shape)

    def integer(self, stop: int) -> int:
        """A whole number in [0, stop), each as likely to within stop / 2**64."""
        return self.word() * stop >> 64


def _philox(key: tuple[int, int], counter: tuple[int, ...]) -> tuple[int, ...]:
    """The four words of one counter."""
    (first, second), (a, b, c, d) = key, counter
    for _ in range(_ROUNDS):
        left, right = _FACTORS[0] * a, _FACTORS[1] * c
        a, b, c, d = (right >> 64) ^ b ^ first, right & _WORD, (left >> 64) ^ d ^ second, left & _WORD
        first, second = (first + _GROWTH[0]) & _WORD, (second + _GROWTH[1]) & _WORD
    return a, b, c, d
