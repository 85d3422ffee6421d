"""Where codecs put whole numbers with a sign: at a fixed width, or entropy coded. In blocks, so that decoding streams.

Levels are taken as 0, -1, 1, -2, 2 … = 0, 1, 2, 3, 4 … (zigzag). Blocks are of 4096 elements, the last is shorter.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from coterie.protocol.codecs import rice
from coterie.protocol.codecs.codec import Payload, malformed, read_payload
from coterie.protocol.codecs.packing import pack, packed_size, unpack

BLOCK = 4096
_SIZE = np.dtype("<u2")

Levels = npt.NDArray[np.int32]


class Packing(Protocol):
    """Levels ⇄ bytes."""

    def min_bytes(self, length: int) -> int:
        """The fewest bytes."""
        ...

    def max_bytes(self, length: int) -> int:
        """The most bytes."""
        ...

    def pack(self, levels: Levels) -> bytes:
        """The bytes of levels whose zigzag numbers fit the width."""
        ...

    def unpack(self, payload: Payload, at: int, length: int, start: int, stop: int) -> Levels:
        """Levels [start, stop) of `length` that begin at byte `at`. Raises errors.UpdateRefused."""
        ...


@dataclass(frozen=True)
class Fixed:
    """`width` bits each."""

    width: int

    def min_bytes(self, length: int) -> int:
        """Exactly what the packed blocks take."""
        return length // BLOCK * packed_size(BLOCK, self.width) + packed_size(length % BLOCK, self.width)

    def max_bytes(self, length: int) -> int:
        """Exactly what the packed blocks take."""
        return self.min_bytes(length)

    def pack(self, levels: Levels) -> bytes:
        """See Packing."""
        numbers = rice.zigzag(levels)
        return b"".join(pack(numbers[low : low + BLOCK], self.width) for low in range(0, levels.size, BLOCK))

    def unpack(self, payload: Payload, at: int, length: int, start: int, stop: int) -> Levels:
        """See Packing."""
        size = packed_size(BLOCK, self.width)
        pieces: list[Levels] = []
        for block in _blocks(start, stop):
            count = min(BLOCK, length - block * BLOCK)
            low = at + block * size
            data = read_payload(payload, low, low + packed_size(count, self.width))
            pieces.append(rice.unzigzag(unpack(data, count, self.width)))
        return _cut(pieces, start, stop)


@dataclass(frozen=True)
class Coded:
    """Golomb-Rice coded, one parameter per block: first the bytes of every block (16 bits each), then the blocks."""

    width: int

    def min_bytes(self, length: int) -> int:
        """One bit for each level, and the heads of the blocks."""
        return sum(_SIZE.itemsize + rice.least_bytes(count) for count in _counts(length))

    def max_bytes(self, length: int) -> int:
        """The width and one bit for each level, and the heads of the blocks."""
        return sum(_SIZE.itemsize + rice.most_bytes(count, self.width) for count in _counts(length))

    def head_bytes(self, length: int) -> int:
        """How many of the packed bytes say how long the blocks are."""
        return _SIZE.itemsize * len(_counts(length))

    def pack(self, levels: Levels) -> bytes:
        """See Packing."""
        numbers = rice.zigzag(levels)
        blocks = [rice.encode(numbers[low : low + BLOCK], self.width) for low in range(0, levels.size, BLOCK)]
        return np.array([len(block) for block in blocks], _SIZE).tobytes() + b"".join(blocks)

    def unpack(self, payload: Payload, at: int, length: int, start: int, stop: int) -> Levels:
        """See Packing."""
        touched = _blocks(start, stop)
        if not touched:
            return np.empty(0, np.int32)
        sizes = np.frombuffer(read_payload(payload, at, at + _SIZE.itemsize * touched.stop), _SIZE).astype(np.int64)
        low = at + _SIZE.itemsize * len(_counts(length)) + int(sizes[: touched.start].sum())
        pieces: list[Levels] = []
        for block in touched:
            count, size = min(BLOCK, length - block * BLOCK), int(sizes[block])
            if size > rice.most_bytes(count, self.width):
                raise malformed(f"Block {block} declares {size} bytes")
            data = read_payload(payload, low, low + size)
            pieces.append(rice.unzigzag(rice.decode(data, count, self.width)))
            low += size
        return _cut(pieces, start, stop)


def _counts(length: int) -> list[int]:
    return [BLOCK] * (length // BLOCK) + ([length % BLOCK] if length % BLOCK else [])


def _blocks(start: int, stop: int) -> range:
    return range(start // BLOCK, -(-stop // BLOCK)) if start < stop else range(0)


def _cut(pieces: list[Levels], start: int, stop: int) -> Levels:
    if not pieces:
        return np.empty(0, np.int32)
    first = start // BLOCK * BLOCK
    return np.concatenate(pieces)[start - first : stop - first]
