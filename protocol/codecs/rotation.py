"""Random rotation in blocks: signs from a seed, then a Walsh-Hadamard transform. No padding to a power of two.

A vector is cut into blocks of 4096 elements; what is left is padded with zeros to a multiple of 64 and cut into blocks
of 2048, 1024, … 64 as its binary digits say, largest first. Every block of size n is rotated as y = H (s ∘ x), where s
are the first n signs of the seed and H is the n × n matrix of ±1 in Sylvester's order (not divided by √n).

Where a few elements hold a block's weight, H alone gives few different values, which a quantiser rounds the same way
every time. `spread` goes before it then: y = H (s ∘ W (t ∘ x)) with signs t of their own and W the 64 × 64 matrix H on
the elements that are n / 64 apart, so that each element has become 64 before H mixes them all.

`rotate` works in float32 and is accurate to rounding. `rotate_back` is exact: it takes whole numbers whose sums stay
below 2**24, so that any order of additions gives the same bits in any language.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from coterie import randomness
from coterie.protocol.arrays import FloatMatrix

BLOCK = 4096
_LEAST = 64
# So many blocks at a time: few enough for a core's caches, enough for the calls not to matter.
GROUP = 32
# Rows at a time in float64.
WIDE = 8

Real = TypeVar("Real", np.float32, np.float64)


@dataclass(frozen=True)
class Span:
    """Blocks of one size in a row.

    start: the first element.
    count: how many.
    first: the first block's number.
    """

    start: int
    size: int
    count: int
    first: int


def spans(length: int) -> list[Span]:
    """The blocks of a vector: of 4096 in groups, then the smaller ones."""
    found: list[Span] = []
    whole = length // BLOCK
    for first in range(0, whole, GROUP):
        found.append(Span(first * BLOCK, BLOCK, min(GROUP, whole - first), first))
    at, rest, number = whole * BLOCK, -(-(length % BLOCK) // _LEAST) * _LEAST, whole
    size = BLOCK
    while rest:
        if rest & size:
            found.append(Span(at, size, 1, number))
            at, rest, number = at + size, rest - size, number + 1
        size //= 2
    return found


def blocks(length: int) -> tuple[int, int]:
    """(number of blocks, their elements with the zeros that fill the last)."""
    rest = -(-(length % BLOCK) // _LEAST) * _LEAST
    return length // BLOCK + rest.bit_count(), length // BLOCK * BLOCK + rest


def signs(seed: bytes) -> npt.NDArray[np.float32]:
    """The signs of a block of 4096; smaller blocks use the first of them."""
    return randomness.signs(randomness.derive(seed, "rotate"), BLOCK)


def spreading(seed: bytes) -> npt.NDArray[np.float32]:
    """The signs t of `spread`."""
    return randomness.signs(randomness.derive(seed, "spread"), BLOCK)


def cut(vector: npt.NDArray[np.float32], span: Span) -> FloatMatrix:
    """The blocks of a span, [count, size], the last filled with zeros where the vector ends."""
    part = vector[span.start : span.start + span.count * span.size]
    missing = span.count * span.size - part.size
    return (np.pad(part, (0, missing)) if missing else part).reshape(span.count, span.size)


@dataclass(frozen=True)
class Space:
    """Room for a span on its way through the transform. Taken once for a vector: memory that comes and goes with every
    span costs more than the transform.
    """

    first: FloatMatrix
    second: FloatMatrix
    third: FloatMatrix

    @staticmethod
    def of(length: int) -> "Space":
        """Room for the spans of a vector of that length."""
        most = min(GROUP * BLOCK, blocks(length)[1])
        return Space(np.empty(most, np.float32), np.empty(most, np.float32), np.empty(most, np.float32))

    def other(self, turned: FloatMatrix) -> FloatMatrix:
        """Of the first two rooms the one in which a rotated span does not lie."""
        return self.second if np.may_share_memory(turned, self.first) else self.first


def rotate(matrix: FloatMatrix, flips: npt.NDArray[np.float32], space: Space) -> FloatMatrix:
    """Every row rotated; lies in `space` until that is used again."""
    flipped = space.second[: matrix.size].reshape(matrix.shape)
    np.multiply(matrix, flips[: matrix.shape[1]], out=flipped)
    return transform(flipped, space.first, space.second)


def spread(matrix: FloatMatrix, flips: npt.NDArray[np.float32], space: Space) -> FloatMatrix:
    """W (t ∘ x) of every row, eight times as long; lies in `space.second`."""
    flipped = space.second[: matrix.size].reshape(matrix.shape)
    np.multiply(matrix, flips[: matrix.shape[1]], out=flipped)
    return _scattered(flipped, space.first, space.second)


def spread_back(whole: FloatMatrix, flips: npt.NDArray[np.float64], scales: npt.NDArray[np.float32]) -> FloatMatrix:
    """64 times the inverse of `spread`, of rows of whole numbers, each times its scale; in their place. The sums are
    exact, in float64 for a few rows at a time, and the product is rounded once.
    """
    size = whole.shape[1]
    room = np.empty(min(len(whole), WIDE) * size, np.float64)
    for low in range(0, len(whole), WIDE):
        part = whole[low : low + WIDE]
        # No zero of W's sums is negative after this, in whatever order they are added.
        wide = np.add(part, 0.0, dtype=np.float64)
        back = _scattered(wide, room, wide.reshape(-1))
        back *= flips[:size]
        with np.errstate(over="ignore", under="ignore"):
            np.multiply(back, scales[low : low + WIDE, None], out=part, casting="same_kind")
    return whole


def _scattered(matrix: npt.NDArray[Real], first: npt.NDArray[Real], second: npt.NDArray[Real]) -> npt.NDArray[Real]:
    """W applied to every row, as 8 ⊗ 8; the second room may be the matrix itself."""
    count, size = matrix.shape
    eight = _hadamard(8, matrix.dtype.char)
    one, two = first[: matrix.size], second[: matrix.size]
    np.matmul(eight, matrix.reshape(-1, 8, size // 64), out=one.reshape(-1, 8, size // 64))
    np.matmul(eight, one.reshape(count, 8, size // 8), out=two.reshape(count, 8, size // 8))
    return two.reshape(count, size)


def rotate_back(whole: npt.NDArray[Real], flips: npt.NDArray[Real], first: npt.NDArray[Real]) -> npt.NDArray[Real]:
    """n times the inverse rotation of rows of whole numbers: exact, in float64 for sums below 2**53. Overwrites
    `whole`, and needs as much room again.
    """
    turned = transform(whole, first, whole.reshape(-1))
    turned *= flips[: whole.shape[1]]
    return turned


def transform(matrix: npt.NDArray[Real], first: npt.NDArray[Real], second: npt.NDArray[Real]) -> npt.NDArray[Real]:
    """H applied to every row, by way of two rooms of which the second may be the matrix itself. That of a block is the
    Kronecker product of small ones, 16 ⊗ 16 ⊗ 16 for 4096, so that small products do: each too small for a BLAS to wake
    its threads for.
    """
    count, size = matrix.shape
    inner, middle, outer = _FACTORS[size]
    kind = matrix.dtype.char
    one, two = first[: matrix.size], second[: matrix.size]
    np.matmul(matrix.reshape(count, -1, inner), _hadamard(inner, kind), out=one.reshape(count, -1, inner))
    np.matmul(_hadamard(middle, kind), one.reshape(-1, middle, inner), out=two.reshape(-1, middle, inner))
    if outer == 1:
        return two.reshape(count, size)
    np.matmul(_hadamard(outer, kind), two.reshape(count, outer, -1), out=one.reshape(count, outer, -1))
    return one.reshape(count, size)


_FACTORS: Mapping[int, tuple[int, int, int]] = MappingProxyType(
    {
        64: (8, 8, 1),
        128: (8, 16, 1),
        256: (16, 16, 1),
        512: (16, 32, 1),
        1024: (32, 32, 1),
        2048: (16, 16, 8),
        4096: (16, 16, 16),
    }
)


@cache
def _hadamard(size: int, kind: str) -> npt.NDArray[Any]:
    matrix = np.ones((1, 1), kind)
    while matrix.shape[0] < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix
