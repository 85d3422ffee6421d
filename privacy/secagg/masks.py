"""Masks: key streams of AES-256 in counter mode (NIST SP 800-38A), added to a vector in the ring.

A mask's 32-byte seed comes from `keys.agree` (a pair's mask: one of the two adds it, the other subtracts it) or from
`keys.derive` (a client's own). HKDF-Expand makes of it a key of 32 bytes and a nonce of 12; the first counter block is
``nonce ‖ 0 (4 bytes, big-endian)``, and coordinate i takes the 32-bit little-endian word i of the stream. So a range of
coordinates is had without those before it, and ranges done apart are bit for bit the whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from coterie.privacy.secagg.fields import TILE
from coterie.privacy.secagg.keys import expand
from coterie.privacy.secagg.ring import WORD, RingVector

STREAM_INFO = b"coterie/secagg/v1/stream"
_ZEROS = memoryview(bytes(4 * TILE))
_SPARE = 16  # `update_into` wants room for one more block


@dataclass(frozen=True)
class MaskSeed:
    """A mask's 32-byte seed, and whether it is added (1) or subtracted (-1). The seed stays out of the repr."""

    seed: bytes = field(repr=False)
    sign: Literal[1, -1]

    @property
    def opposite(self) -> "MaskSeed":
        """The mask that cancels this one."""
        return MaskSeed(self.seed, -1 if self.sign == 1 else 1)


def add_masks(total: RingVector, masks: Sequence[MaskSeed], start: int = 0) -> None:
    """Add the masks' words from coordinate `start` on to `total`, in place, modulo 2**32.

    total: the coordinates [start, start + total.size) of a vector. Masks are added tile by tile, not one after another,
    so that the sum stays in the processor's cache.
    """
    adder = Adder(masks, start)
    for low in range(0, total.size, TILE):
        adder.add(total[low : low + TILE])


class Adder:
    """Adds masks to a vector that comes piece by piece, from the coordinate `start` on."""

    def __init__(self, masks: Sequence[MaskSeed], start: int = 0) -> None:
        self._streams = [(_stream(mask.seed, start), np.add if mask.sign == 1 else np.subtract) for mask in masks]
        self._drawn = bytearray(4 * TILE + _SPARE)
        self._words = np.frombuffer(self._drawn, WORD)

    def add(self, tile: RingVector) -> None:
        """Add the words of the next coordinates, at most `TILE`, in place."""
        zeros, words = _ZEROS[: 4 * tile.size], self._words[: tile.size]
        for stream, add in self._streams:
            stream.update_into(zeros, self._drawn)
            add(tile, words, out=tile)


def _stream(seed: bytes, start: int) -> CipherContext:
    """The key stream of a seed from word `start` on, as a cipher that encrypts zeros."""
    key = expand(seed, STREAM_INFO, 44)
    block, lead = divmod(4 * start, 16)
    stream = Cipher(algorithms.AES(key[:32]), modes.CTR(key[32:] + block.to_bytes(4, "big"))).encryptor()
    stream.update(bytes(lead))
    return stream
