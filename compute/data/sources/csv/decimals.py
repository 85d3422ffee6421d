"""Plain decimal numbers in text, thousands of cells at a time.

A cell is loaded as up to three 64-bit words of eight characters, and all of it is arithmetic on such words: masks find
the decimal point and squeeze it out, and three multiplications turn eight digits into a number (the technique is that
of D. Lemire, "Quickly parsing eight digits", 2018). What the words do not hold is said to be bad, never guessed.
"""

from dataclasses import dataclass

import numpy as np

from coterie.compute.ir import NDArray

WORD = 8
MOST_WORDS = 3
PADDING = WORD * MOST_WORDS
"""Bytes that must stand before the first cell, so that words can be loaded from before its start."""

ZEROS = np.uint64(0x3030303030303030)
# What is left of eight points once "0" is taken away from every character.
POINTS = np.uint64(0x1E1E1E1E1E1E1E1E)
LOW_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)
HIGH_BITS = np.uint64(0x8080808080808080)
# Added to a byte above nine, it sets that byte's highest bit.
ABOVE_NINE = np.uint64(0x7676767676767676)
ALL_BITS = np.uint64(2**64 - 1)
# (mask, factor, shift) of the three steps from eight digits to four pairs, to two fours, to one number.
FOLDS = tuple(
    (np.uint64(mask), np.uint64(factor), np.uint64(shift))
    for mask, factor, shift in (
        (0x0F0F0F0F0F0F0F0F, 1 + (10 << 8), 8),
        (0x00FF00FF00FF00FF, 1 + (100 << 16), 16),
        (0x0000FFFF0000FFFF, 1 + (10_000 << 32), 32),
    )
)
TEN_TO_8, TEN_TO_16 = np.uint64(10**8), np.uint64(10**16)
# 19 digits are always below 2^64, 20 are not.
MOST_IN_THIRD_WORD = np.uint64(999)
NONE, ONE, BYTE, SEVEN_BYTES = np.uint64(0), np.uint64(1), np.uint64(8), np.uint64(56)
MINUS, PLUS = ord("-"), ord("+")


@dataclass(frozen=True, slots=True)
class Decimals:
    """For each cell the number ``±mantissa · 10^-fraction``; 0 where ``bad``.

    mantissa: uint64. fraction: int64, the digits after the point, at most 23; its first axis has length 1 where all
    rows have the same. negative: bool. bad: bool, the cell has more than 24 characters, or is other than an optional
    sign and up to 19 digits (leading zeros do not count) with at most one point.
    """

    mantissa: NDArray
    fraction: NDArray
    negative: NDArray
    bad: NDArray


def decimals(buffer: NDArray, starts: NDArray, ends: NDArray) -> Decimals:
    """Read the cells ``buffer[starts[i]:ends[i]]``.

    buffer: uint8, contiguous, with PADDING bytes of any content before the first cell and at least one after the last.
    starts, ends: int64, of any shape, ``PADDING <= starts <= ends``; rows of cells that look alike are the fastest.
    """
    lead = buffer[starts]
    # An empty cell's first byte is what follows it, which is no sign.
    negative = lead == MINUS
    length = ends - starts - (negative | (lead == PLUS))
    longest = int(length.max(initial=0))
    count = min(max(-(-longest // WORD), 1), MOST_WORDS)
    words = _load(buffer, ends, length, count)
    words, fraction, points = _without_points(words)
    foreign = words[0] + ABOVE_NINE
    foreign |= words[0]
    for word in words[1:]:
        foreign |= word
        foreign |= word + ABOVE_NINE
    foreign &= HIGH_BITS
    bad = (foreign != 0) | (length <= points) | (points > 1)
    folded = [_fold(word) for word in words]
    mantissa = folded[0]
    if count > 1:
        mantissa = mantissa + folded[1] * TEN_TO_8
    if count > 2:
        bad |= (folded[2] > MOST_IN_THIRD_WORD) | (length > PADDING)
        mantissa = mantissa + folded[2] * TEN_TO_16
    if bad.any():
        fraction = np.where(bad, 0, fraction)
        mantissa[bad] = 0
    return Decimals(mantissa, fraction, negative, bad)


def _load(buffer: NDArray, ends: NDArray, length: NDArray, count: int) -> list[NDArray]:
    """The cells' last characters as words, the last word first; "0" taken away, and 0 for what is not in the cell."""
    # Little-endian: a word's last character is its highest byte.
    every = np.ndarray((buffer.size - WORD + 1,), "<u8", buffer.data, strides=(1,))
    outside = 64 - 8 * length
    words: list[NDArray] = []
    for k in range(count):
        word = every[ends - WORD * (k + 1)]
        word ^= ZEROS
        # NumPy shifts by 64 and more to zero.
        word &= ALL_BITS << np.maximum(outside + 64 * k, 0).view(np.uint64)
        words.append(word)
    return words


def _without_points(words: list[NDArray]) -> tuple[list[NDArray], NDArray, NDArray]:
    """The words with the point squeezed out, the digits after it, and how many points there are."""
    marks = [_zero_bytes(word ^ POINTS) for word in words]
    if all((mark == mark[:1]).all() for mark in marks):
        # Columns of so many digits after the point: one row tells of all.
        marks = [mark[:1] for mark in marks]
    points = np.bitwise_count(marks[0]).astype(np.int64)
    for mark in marks[1:]:
        points += np.bitwise_count(mark)
    if not points.any():
        return words, points, points
    squeezed: list[NDArray] = []
    found: NDArray | None = None
    moved_bits = np.zeros(points.shape, np.int64)
    for k, (word, mark) in enumerate(zip(words, marks, strict=True)):
        here = (mark != 0).astype(np.uint64)
        # The point and everything before it: these move one place towards the end.
        moving = mark << ONE
        moving -= here
        if found is not None:
            moving |= NONE - found
        moved = word << BYTE
        if k + 1 < len(words):
            moved |= words[k + 1] >> SEVEN_BYTES
        moved ^= word
        moved &= moving
        moved ^= word
        squeezed.append(moved)
        moved_bits += np.bitwise_count(moving)
        if k + 1 < len(words):
            found = here if found is None else found | here
    fraction = WORD * len(words) - (moved_bits >> 3)
    fraction *= points == 1
    return squeezed, fraction, points


def _zero_bytes(word: NDArray) -> NDArray:
    """The highest bit of every byte that is zero (H. S. Warren, "Hacker's Delight", 6-1)."""
    low = word & LOW_BITS
    low += LOW_BITS
    low |= word
    low |= LOW_BITS
    return np.invert(low, out=low)


def _fold(word: NDArray) -> NDArray:
    """Eight bytes that are digits, the lowest byte the first of them, to the number that they write."""
    word = word.copy()
    for mask, factor, shift in FOLDS:
        word &= mask
        word *= factor
        word >>= shift
    return word
