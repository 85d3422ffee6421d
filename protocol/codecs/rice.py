"""Golomb-Rice codes of whole numbers: the entropy coding of everything here that is small more often than large.

A run of `count` numbers below 2**width, with a parameter k from 0 to width, that of the fewest bytes and of several
such the least, so that every encoder writes the same:

    k                          1 byte
    the low k bits of each     packed (see packing)
    the rest, n >> k, of each  in unary: as many 0 bits as it says, then a 1; lowest bit of a byte first, zeros to fill

R. F. Rice, "Some practical universal noiseless coding techniques", JPL 79-22, 1979.
"""

import numpy as np
import numpy.typing as npt

from coterie.protocol.codecs.codec import malformed
from coterie.protocol.codecs.packing import pack, packed_size, unpack

UInt32Array = npt.NDArray[np.uint32]


def least_bytes(count: int) -> int:
    """The fewest bytes of a run: one bit for each number."""
    return 1 + (count + 7) // 8


def most_bytes(count: int, width: int) -> int:
    """The most bytes of a run: those of k = width."""
    return 1 + packed_size(count, width) + (count + 7) // 8


def encode(numbers: UInt32Array, width: int) -> bytes:
    """The bytes of a run of numbers below 2**width."""
    k = _best(numbers, width)
    rests = numbers >> np.uint32(k)
    ends = np.cumsum(rests.astype(np.int64) + 1)
    bits = np.zeros(int(ends[-1]) if ends.size else 0, np.uint8)
    bits[ends - 1] = 1
    low = pack(numbers & np.uint32((1 << k) - 1), k) if k else b""
    return bytes([k]) + low + np.packbits(bits, bitorder="little").tobytes()


def decode(data: bytes | memoryview, count: int, width: int) -> UInt32Array:
    """The numbers of a run whose bytes are exactly `data`.

    Allocates at most eight times the bytes given and a few numbers for each of `count`. Raises errors.UpdateRefused
    (``malformed``).
    """
    if not least_bytes(count) <= len(data) <= most_bytes(count, width):
        raise malformed(f"A coded run of {count} numbers has {len(data)} bytes")
    k = data[0]
    at = 1 + packed_size(count, k if k <= width else 0)
    if k > width or at > len(data):
        raise malformed(f"A coded run of {len(data)} bytes has the parameter {k}")
    bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=at), bitorder="little")
    held = int(np.count_nonzero(bits))
    ends = np.flatnonzero(bits) if held == count else np.empty(0, np.int64)
    used = int(ends[-1]) + 1 if ends.size else 0
    if held != count or (used + 7) // 8 != len(data) - at:
        raise malformed(f"A coded run of {count} numbers holds {held}, or bytes after the last")
    rests = np.diff(ends, prepend=-1) - 1
    if count and int(rests.max()) >= 1 << (width - k):
        raise malformed(f"A coded number has more than {width} bits")
    low = unpack(data[1:at], count, k) if k else np.uint32(0)
    return (rests.astype(np.uint32) << np.uint32(k)) | low


def _best(numbers: UInt32Array, width: int) -> int:
    return min(range(width + 1), key=lambda k: _size(numbers, k))


def _size(numbers: UInt32Array, k: int) -> int:
    return packed_size(numbers.size, k) + (int((numbers >> np.uint32(k)).sum(dtype=np.int64)) + numbers.size + 7) // 8


def zigzag(levels: npt.NDArray[np.int32]) -> UInt32Array:
    """0, -1, 1, -2, 2 … as 0, 1, 2, 3, 4 …"""
    return ((levels << 1) ^ (levels >> 31)).view(np.uint32)


def unzigzag(numbers: UInt32Array) -> npt.NDArray[np.int32]:
    """The inverse of `zigzag`."""
    return ((numbers >> np.uint32(1)) ^ (np.uint32(0) - (numbers & np.uint32(1)))).view(np.int32)
