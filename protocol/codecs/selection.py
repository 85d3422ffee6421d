"""A random part of a vector that everybody with the same seed selects alike.

The vector is cut into blocks of 65 536 elements (the last is shorter). In a block of n elements, k = ⌈p·n⌉ are kept:
those with the smallest pairs (32-bit word of the seed's stream at the element's place in the vector, place).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from coterie import randomness

BLOCK = 1 << 16


@dataclass(frozen=True)
class Selection:
    """A part of a vector: the fraction p of every block, by the seed."""

    fraction: float
    seed: bytes
    length: int

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return -(-self.length // BLOCK)

    def kept_count(self, block: int) -> int:
        """How many elements of a block are kept, at least one."""
        return kept_count(self.fraction, self.size(block))

    def size(self, block: int) -> int:
        """How many elements a block has."""
        return min(BLOCK, self.length - block * BLOCK)

    def before(self, block: int) -> int:
        """How many elements of the blocks before this one are kept."""
        return block * kept_count(self.fraction, BLOCK) if block < self.blocks else total(self.fraction, self.length)

    def places(self, block: int) -> npt.NDArray[np.int64]:
        """The places of the kept elements within a block, rising."""
        return _places(self.seed, block, self.size(block), self.kept_count(block))


def kept_count(fraction: float, count: int) -> int:
    """How many of `count` elements are kept: ⌈fraction · count⌉, in double precision."""
    return min(count, math.ceil(fraction * count))


def total(fraction: float, length: int) -> int:
    """How many elements of a vector are kept."""
    rest = length % BLOCK
    return length // BLOCK * kept_count(fraction, BLOCK) + (kept_count(fraction, rest) if rest else 0)


# Every update of a round selects alike, so an aggregator needs few of these again and again.
@lru_cache(maxsize=32)
def _places(seed: bytes, block: int, size: int, count: int) -> npt.NDArray[np.int64]:
    low = block * BLOCK
    order = randomness.words(seed, low, low + size).astype(np.uint64) << np.uint64(32)
    order |= np.arange(size, dtype=np.uint64)
    chosen = np.partition(order, count - 1)[:count] & np.uint64(0xFFFFFFFF)
    places = np.sort(chosen).astype(np.int64)
    places.flags.writeable = False
    return places
