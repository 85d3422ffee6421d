"""Plain decimal numbers in text, thousands of cells at a time.

A cell is loaded as up to three 64-bit words of eight characters, and all of it is arithmetic on such words: masks find
the decimal point and squeeze it out, and three multiplications turn eight digits into a number (the technique is that
of D. Lemire, "Quickly parsing eight digits", 2018). What the words do not hold is said to be bad, never guessed.

The arrays have one dimension and no operation mixes dtypes or has a scalar shifted by an array: NumPy then runs at the
speed of the processor's vectors, and else up to fifty times slower.
"""

from dataclasses import dataclass

import numpy as np

from coterie.compute.ir import NDArray

WORD = 8
MOST_WORDS = 3
PADDING = WORD * MOST_WORDS
"""Bytes that must stand before the first cell, so that words can be loaded from before its start."""

ZERO, MINUS, PLUS = ord("0"), ord("-"), ord("+")
ZEROS = np.uint64(0x3030303030303030)
# A point once "0" is taken away from it.
POINT = np.uint64(0x1E)
ONES = np.uint64(0x0101010101010101)
HIGH_BITS = np.uint64(0x8080808080808080)
# Added to a byte above nine, it sets that byte's highest bit.
ABOVE_NINE = np.uint64(0x7676767676767676)
# Byte k is the number of characters after character 7 - k: times a one in byte k, the highest byte of the product.
AFTER = np.uint64(0x0706050403020100)
# (dtype, factor, shift) of the three steps from eight digits to four pairs, to two fours, to one number: a lane holds
# its first half in its low bits, and the product above the shift is first · 10^k + second.
FOLDS = (
    (np.uint16, np.uint16(1 + (10 << 8)), np.uint16(8)),
    (np.uint32, np.uint32(1 + (100 << 16)), np.uint32(16)),
    (np.uint64, np.uint64(1 + (10_000 << 32)), np.uint64(32)),
)
TEN_TO_8, TEN_TO_16 = np.uint64(10**8), np.uint64(10**16)
# 19 digits are always below 2^64, 20 are not.
MOST_IN_THIRD_WORD = np.uint64(999)
MOST_CHARACTERS = np.uint64(PADDING)
NONE, ONE, THREE, FOUR, SEVEN = (np.uint64(number) for number in (0, 1, 3, 4, 7))
LAST_BYTE, WORD_BITS, BYTE_LESS_ONE = np.uint64(56), np.uint64(64), np.uint64(255)


@dataclass(frozen=True, slots=True)
class Decimals:
    """For each cell the number ``±mantissa · 10^-fraction``; 0 where ``bad``.

    mantissa: uint64. fraction: int64, the digits after the point, at most 23. negative: bool. bad: bool, the cell has
    more than 24 characters, or is other than an optional sign and up to 19 digits (leading zeros do not count) with at
    most one point.
    """

    mantissa: NDArray
    fraction: NDArray
    negative: NDArray
    bad: NDArray


def padded(text: bytes) -> NDArray:
    """The text as uint8 behind PADDING other bytes, of whole words in all, and with a byte or more after the text."""
    size = PADDING + len(text)
    buffer = np.empty(size // WORD + 1, np.uint64).view(np.uint8)
    buffer[:PADDING] = buffer[size:] = ZERO
    buffer[PADDING:size] = np.frombuffer(text, np.uint8)
    return buffer


def decimals(buffer: NDArray, starts: NDArray, ends: NDArray) -> Decimals:
    """Read the cells ``buffer[starts[i]:ends[i]]``.

    buffer: uint8, of `padded`. starts, ends: int64, of one shape, ``PADDING <= starts <= ends < buffer.size``.
    """
    shape = ends.shape
    starts, ends = starts.ravel(), ends.ravel()
    lead = buffer.take(starts)
    # An empty cell's first byte is what follows it, which is no sign.
    negative, positive = lead == MINUS, lead == PLUS
    length = np.subtract(ends, starts).view(np.uint64)
    length -= negative.astype(np.uint64)
    if positive.any():
        length -= positive.astype(np.uint64)
    words = _load(buffer, ends, length)
    fraction, points, foreign = _squeeze(words)
    bad = length <= points
    if foreign.max(initial=NONE):
        bad |= foreign != NONE
    if points.max(initial=NONE) > ONE:
        bad |= points > ONE
    for word in words:
        _fold(word)
    mantissa = words[0]
    if len(words) > 1:
        mantissa += words[1] * TEN_TO_8
    if len(words) > 2:
        bad |= words[2] > MOST_IN_THIRD_WORD
        bad |= length > MOST_CHARACTERS
        mantissa += words[2] * TEN_TO_16
    if bad.any():
        fraction[bad] = mantissa[bad] = 0
    return Decimals(
        mantissa.reshape(shape), fraction.view(np.int64).reshape(shape), negative.reshape(shape), bad.reshape(shape)
    )


def _load(buffer: NDArray, ends: NDArray, length: NDArray) -> list[NDArray]:
    """The cells' last characters as words, the last word first; "0" taken away, and 0 for what is not in the cell."""
    # Little-endian: a word's last character is its highest byte.
    every = buffer.view("<u8")
    place = np.subtract(ends, PADDING).view(np.uint64)
    within = place & SEVEN
    within <<= THREE
    beyond = WORD_BITS - within
    place >>= THREE
    place = place.view(np.int64)
    bits = length << THREE
    most = int(bits.max(initial=NONE))
    upper = every[MOST_WORDS:].take(place)
    words: list[NDArray] = []
    for k in range(MOST_WORDS):
        lower = every[MOST_WORDS - 1 - k :].take(place)
        # NumPy shifts by 64 and more to zero.
        upper <<= beyond
        upper |= lower >> within
        upper ^= ZEROS
        reach = np.uint64(64 * (k + 1))
        outside = reach - (np.minimum(bits, reach) if most > reach else bits)
        upper >>= outside
        upper <<= outside
        words.append(upper)
        upper = lower
        if most <= reach:
            break
    return words


def _squeeze(words: list[NDArray]) -> tuple[NDArray, NDArray, NDArray]:
    """Squeeze the point out of the words, in place.

    Returns uint64: the digits after the point; how many points there are, and with several of them the words mean
    nothing; and what is not zero where a character is neither digit nor point.
    """
    fraction = points = foreign = np.zeros_like(words[0])
    found = False
    for k, word in enumerate(words):
        # A one in every byte that is a point or foreign: digits lack the fifth bit, and "/" is the odd neighbour.
        mark = word >> FOUR
        mark &= ~word
        mark &= ONES
        marked = bool(mark.max(initial=NONE))
        if marked:
            # A point becomes zero, a foreign character stays foreign.
            word -= mark * POINT
        other = word + ABOVE_NINE
        other |= word
        other &= HIGH_BITS
        foreign = foreign | other
        if not found and not marked:
            continue
        here = mark * ONES
        here >>= LAST_BYTE
        # All before the point moves one place towards the end.
        moving = mark - here
        moving |= NONE - points
        moving &= word
        moving *= BYTE_LESS_ONE
        word += moving
        mark *= AFTER
        mark >>= LAST_BYTE
        fraction = fraction + mark
        if k:
            fraction += here * np.uint64(WORD * k)
        points = points + here
        if k + 1 < len(words):
            carried = words[k + 1] >> LAST_BYTE
            carried *= points
            word += carried
        found = True
    return fraction, points, foreign


def _fold(word: NDArray) -> None:
    """Eight bytes that are digits, the lowest byte the first of them, to the number that they write; in place."""
    for dtype, factor, shift in FOLDS:
        lanes = word.view(dtype)
        lanes *= factor
        lanes >>= shift
