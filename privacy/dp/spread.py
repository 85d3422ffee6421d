"""Spreading a vector evenly over its coordinates by a public rotation, so that a small ring holds the sum of many.

Two steps that keep the norm, both known to everybody and undone exactly but for float64's rounding:

1. Dealing. Coordinate i of the result is coordinate (i · step) mod length of the vector, with the step nearest to
   length / golden ratio that has no common divisor with the length. Neighbours, and so every layer of a model, are
   dealt to all blocks alike; a layer of large numbers does not fill one block.
2. Rotation. Each block of the codecs' rotation (see `coterie.protocol.codecs.rotation`: 4096 elements, then smaller
   ones, zeros where the last ends) becomes H (s ∘ x) / √n, with signs s from a public seed. Each coordinate is then
   sub-Gaussian over the seed, with the block's mean square as its variance.
"""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from coterie.protocol.arrays import Vector
from coterie.protocol.codecs import rotation


def padded(length: int) -> int:
    """How many coordinates a spread vector has."""
    return rotation.blocks(length)[1]


def spread(vector: Vector, shared: bytes) -> Vector:
    """The spread vector, float64[padded(length)].

    shared: the public seed, 32 bytes.
    """
    dealt = np.zeros(padded(vector.size))
    dealt[: vector.size] = vector[dealing(vector.size)]
    return _transformed(dealt, vector.size, before=_signs(shared), after=_ONES)


def gather(turned: Vector, length: int, shared: bytes) -> Vector:
    """The vector of `length` from the spread one, or the sum of vectors from the sum of spread ones."""
    vector = np.empty(length)
    vector[dealing(length)] = _transformed(turned, length, before=_ONES, after=_signs(shared))[:length]
    return vector


_ONES = np.ones(rotation.BLOCK)


def _signs(shared: bytes) -> Vector:
    return rotation.signs(shared).astype(np.float64)


def _transformed(values: Vector, length: int, *, before: Vector, after: Vector) -> Vector:
    """after ∘ H (before ∘ x) / √n of every block x of n elements."""
    result = np.empty_like(values)
    room = np.empty(min(values.size, rotation.GROUP * rotation.BLOCK))
    other = np.empty_like(room)
    for span in rotation.spans(length):
        here = slice(span.start, span.start + span.count * span.size)
        block = values[here].reshape(span.count, span.size)
        flipped = np.multiply(block, before[: span.size], out=other[: block.size].reshape(block.shape))
        turned = rotation.transform(flipped, room, other)
        np.multiply(turned, after[: span.size] / math.sqrt(span.size), out=result[here].reshape(block.shape))
    return result


@lru_cache(maxsize=8)
def dealing(length: int) -> npt.NDArray[np.int64]:
    """Which coordinate each place of the dealt vector holds, ``[length]``."""
    order = np.arange(length, dtype=np.int64) * stride(length) % length
    order.setflags(write=False)
    return order


def stride(length: int) -> int:
    """The step of the dealing: between 1 and length, without a common divisor with it."""
    near = max(1, round(length / ((1 + math.sqrt(5)) / 2)))
    for away in range(length):
        for step in (near - away, near + away):
            if 1 <= step <= length and math.gcd(step, length) == 1:
                return step
    return 1
