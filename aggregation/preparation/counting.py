"""What rows add to a survey, as array functions that a plan's graph is traced from.

Each function gives ⟨weights, what the row adds⟩ for every row, linear in the weights: the gradient with respect to
them, summed over the rows, is what the rows add together. What a row adds is an outer product of two codes with a
single one each, or of such a code and a text's bits; so the gradient is a product of matrices, and what rows add is
never held row by row.
"""

import math

from coterie.aggregation.preparation.bins import LARGEST, SMALLEST
from coterie.aggregation.preparation.hashing import BITS, COLUMNS, DIGIT, DIGIT_BITS, DIGITS, LONGEST
from coterie.aggregation.preparation.rule import OPEN
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.protocol.arrays import FloatMatrix


def in_bins(values: Array, low: Array, width: Array, logarithmic: Array, weights: Array) -> Array:
    """Of each value the weight of its bin; a value beyond all bins is in the one at the end.

    values: ``[groups, N]``.
    low, width: ``[groups]``.
    logarithmic: ``[1]``, one where these are of the signed logarithm, else zero.
    weights: ``[groups, bins]``, bins a power of two.
    Returns ``[groups, N]``.
    """
    groups, bins = weights.shape
    inner = 1 << round(math.log2(bins) / 2)
    position = xp.floor((_scaled(values, logarithmic) - low[:, None]) / width[:, None])
    position = xp.minimum(xp.maximum(position, 0.0), float(bins - 1))
    outer = xp.floor(position / float(inner))
    rest = position - outer * float(inner)
    spread = xp.matmul(_one_hot(outer, bins // inner), xp.reshape(weights, (groups, bins // inner, inner)))
    return xp.sum(spread * _one_hot(rest, inner), axis=2)


def of_texts(texts: Array, stage: Array, slots: Array, weights: Array, matrix: FloatMatrix, discovered: Array) -> Array:
    """Of each row the weights of what its texts add.

    texts: bytes ``[B, columns, LONGEST]`` as float32.
    stage: ``[4]``.
    slots: ``[columns, most, 3]``.
    weights: ``[columns, most, COLUMNS]``; see `rule`.
    discovered: ``[columns]``, one where texts are to be found and not declared.
    Returns ``[B]``.
    """
    rows, columns = texts.shape[:2]
    bits = _bits(texts)
    digits = _digits(bits, matrix)
    asked = xp.concat(
        [
            bits * discovered[None, :, None],
            xp.zeros((rows, columns, COLUMNS - BITS - 1)),
            xp.ones((rows, columns, 1)),
        ],
        axis=2,
    )
    content = stage[DIGITS] * asked
    for digit in range(DIGITS):
        values = _one_hot(digits[:, :, digit], DIGIT)
        content = content + stage[digit] * xp.concat([values, xp.zeros((rows, columns, COLUMNS - DIGIT))], axis=2)
    found = _matches(digits, slots)
    spread = xp.matmul(xp.permute_dims(found, (1, 0, 2)), weights)
    return xp.sum(xp.sum(spread * xp.permute_dims(content, (1, 0, 2)), axis=2), axis=0)


def _scaled(values: Array, logarithmic: Array) -> Array:
    held = xp.minimum(xp.maximum(values, -LARGEST), LARGEST)
    size = xp.log(1.0 + xp.abs(held) / SMALLEST) / math.log(2.0)
    return xp.where(logarithmic > 0.5, xp.sign(held) * size, values)


def _one_hot(places: Array, size: int) -> Array:
    """``[…, size]`` with a one at the place."""
    return xp.astype(places[..., None] == xp.astype(xp.arange(size), xp.float32), xp.float32)


def _bits(texts: Array) -> Array:
    """``[B, columns, BITS]``: the bits of the bytes, of each byte the lowest first."""
    rows, columns, _ = texts.shape
    planes = [xp.floor(texts / float(1 << bit)) - 2.0 * xp.floor(texts / float(2 << bit)) for bit in range(8)]
    return xp.reshape(xp.stack(planes, axis=3), (rows, columns, 8 * LONGEST))


def _digits(bits: Array, matrix: FloatMatrix) -> Array:
    """``[B, columns, 3]``: the hash, as `hashing.digits_of` has it. Sums of at most 504 ones are exact."""
    rows, columns, _ = bits.shape
    sums = xp.matmul(bits, xp.asarray(matrix))
    parities = xp.reshape(sums - 2.0 * xp.floor(sums / 2.0), (rows, columns, DIGITS, DIGIT_BITS))
    return xp.sum(parities * xp.asarray([float(1 << bit) for bit in range(DIGIT_BITS)], dtype=xp.float32), axis=3)


def _matches(digits: Array, slots: Array) -> Array:
    """``[B, columns, most]``: one where all digits of a slot that are known are those of the text. A slot whose first
    digit is neither known nor open is not in use.
    """
    given = digits[:, :, None, :] == slots[None]
    first = xp.logical_or(given[..., 0], slots[None, :, :, 0] == OPEN)
    rest = xp.logical_or(given[..., 1:], slots[None, :, :, 1:] < 0.0)
    return xp.astype(xp.logical_and(first, xp.all(rest, axis=3)), xp.float32)
