"""Uniform words from a key: the AES-256-CTR key stream, read once from its beginning to its end.

The key is 32 bytes, the first counter block is zero, counters are 128-bit big-endian (NIST SP 800-38A): the stream of
`coterie.randomness`. Words are little-endian. Whoever knows the key knows the noise: a key that hides
something comes from the system's generator (`Source.fresh`), is used once and is then forgotten.
"""

import os

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from coterie import errors
from coterie.privacy.entropy import Entropy, draw

KEY_BYTES = 32
_BLOCK = 16
# What is encrypted to read the stream, as much at a time as stays in a core's caches.
_ZEROS = bytes(1 << 18)


class NoiseSource:
    """A key's stream and the place in it. Every read moves on; nothing is handed out twice."""

    def __init__(self, key: bytes) -> None:
        """Begin the stream of a key.

        key: 32 bytes.
        Raises errors.ArgumentValueError for another length.
        """
        if len(key) != KEY_BYTES:
            raise errors.ArgumentValueError(f"A key of noise has {KEY_BYTES} bytes, not {len(key)}.")
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK))).encryptor()

    def __repr__(self) -> str:
        """Says nothing about the key."""
        return "Source(key hidden)"

    @staticmethod
    def fresh(entropy: Entropy = os.urandom) -> "NoiseSource":
        """A source whose key nobody has seen."""
        return NoiseSource(draw(entropy, KEY_BYTES))

    def take(self, count: int) -> npt.NDArray[np.uint8]:
        """The next `count` bytes."""
        # The cipher asks for room for a block more than it writes.
        room = np.empty(count + _BLOCK - 1, np.uint8)
        view = room.data
        for start in range(0, count, len(_ZEROS)):
            size = min(len(_ZEROS), count - start)
            self._encryptor.update_into(memoryview(_ZEROS)[:size], view[start : start + size + _BLOCK - 1])
        return room[:count]

    def words16(self, count: int) -> npt.NDArray[np.uint16]:
        """The next `count` words of 16 bits."""
        return self.take(2 * count).view("<u2")

    def words32(self, count: int) -> npt.NDArray[np.uint32]:
        """The next `count` words of 32 bits."""
        return self.take(4 * count).view("<u4")

    def words64(self, count: int) -> npt.NDArray[np.uint64]:
        """The next `count` words of 64 bits."""
        return self.take(8 * count).view("<u8")

    def below(self, bound: int) -> int:
        """A whole number, uniform in [0, bound), by rejection: exactly uniform, whatever the bound.

        Raises errors.ArgumentValueError for a bound below one.
        """
        if bound < 1:
            raise errors.ArgumentValueError(f"There is no whole number from 0 to below {bound}.")
        bits = (bound - 1).bit_length()
        size = -(-bits // 8)
        while True:
            found = int.from_bytes(self.take(size).tobytes(), "little") & ((1 << bits) - 1)
            if found < bound:
                return found

    def distinct(self, count: int, bound: int) -> list[int]:
        """`count` different whole numbers below `bound`: every such set is equally likely (Floyd's way, a draw for
        each). Raises errors.ArgumentValueError where there are not so many.
        """
        if not 0 <= count <= bound:
            raise errors.ArgumentValueError(f"There are no {count} different whole numbers from 0 to below {bound}.")
        found: dict[int, None] = {}
        for last in range(bound - count, bound):
            drawn = self.below(last + 1)
            found[last if drawn in found else drawn] = None
        return list(found)
