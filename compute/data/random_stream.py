"""Random numbers of one row, found by counting instead of drawn in turn."""

from math import prod
from typing import Any

import numpy as np

from coterie.compute.ir import NDArray

_BITS = 53


class RandomStream:
    """Numbers that depend on a seed, a step of the pipeline, a pass and a position, and on nothing else.

    So they are the same whichever worker asks, in whatever order, and after every resumption. They are the raw words of
    Philox (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011) under the key (seed, step), from the
    counter (position, pass) on; the generator is made when the first number is asked for.
    """

    __slots__ = ("_counter", "_generator", "_key")

    def __init__(self, seed: int, step: int, epoch: int, position: int) -> None:
        self._key = (seed % 2**64, step)
        self._counter = (0, 0, position, epoch)
        self._generator: np.random.Philox | None = None

    def words(self, count: int) -> NDArray:
        """The next raw words, uint64 [count]."""
        if self._generator is None:
            key, counter = np.array(self._key, np.uint64), np.array(self._counter, np.uint64)
            self._generator = np.random.Philox(key=key, counter=counter)
        return self._generator.random_raw(count)

    def uniform(self, low: float = 0.0, high: float = 1.0, shape: tuple[int, ...] = ()) -> Any:
        """Numbers in [low, high): a float for the shape ``()``, else float64 of that shape."""
        numbers = (self.words(prod(shape)) >> np.uint64(64 - _BITS)) * 2.0**-_BITS * (high - low) + low
        return float(numbers[0]) if shape == () else numbers.reshape(shape)

    def integer(self, stop: int) -> int:
        """A whole number in [0, stop), each as likely to within stop / 2**64."""
        return int(self.words(1)[0]) * stop >> 64
