"""Texts as 24 bits, by a hash that a graph can compute: every bit of it is the parity of a random half of the text's
bits.

Two different texts have one hash with probability 2**-24 over the matrix, which a public seed draws (universal linear
hashing over GF(2): Carter and Wegman, 1979). The empty text, and one without room, has the hash 0.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from coterie.protocol.arrays import FloatMatrix
from coterie.protocol.texts import as_bytes

LONGEST = 63
"""Bytes of a text that can be found."""
BITS = 8 * LONGEST
DIGITS, DIGIT_BITS = 3, 8
DIGIT = 1 << DIGIT_BITS
COLUMNS = 512
"""Of the sums of a text column for each found text: its bits, or the next digit's values; the last counts rows."""
MARK = COLUMNS - 1


@lru_cache(maxsize=8)
def matrix(seed: int) -> FloatMatrix:
    """``[BITS, 24]`` of zeros and ones; the same for the same seed on every machine."""
    words = np.random.Philox(key=np.array([seed, 0x68617368], np.uint64)).random_raw(BITS * DIGITS * DIGIT_BITS)
    drawn = (words >> np.uint64(63)).astype(np.float32).reshape(BITS, DIGITS * DIGIT_BITS)
    drawn.setflags(write=False)
    return drawn


def bits_of(texts: Sequence[str]) -> npt.NDArray[np.uint8]:
    """``[N, BITS]``: the bits of each text's bytes, of each byte the lowest first."""
    return np.unpackbits(as_bytes(texts, LONGEST), axis=1, bitorder="little")


def digits_of(texts: Sequence[str], seed: int) -> npt.NDArray[np.float32]:
    """``[N, 3]``: the hash of each text as three numbers of 8 bits, in the order in which they are found."""
    parities = (bits_of(texts).astype(np.int64) @ matrix(seed).astype(np.int64)) % 2
    return (parities.reshape(-1, DIGITS, DIGIT_BITS) @ (1 << np.arange(DIGIT_BITS))).astype(np.float32)


def text_of(bits: npt.NDArray[np.bool_]) -> str | None:
    """The text of these bits ``[BITS]``; None where they are no text's."""
    data = np.packbits(bits, bitorder="little").tobytes().rstrip(b"\0")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if text and text.isprintable() and text == text.strip() else None
