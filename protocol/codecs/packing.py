"""Small whole numbers as bits, all of one width.

A number of `width` bits is cut, from its lowest bit on, into fields of 16, 8, 4, 2 and 1 bits: the binary digits of the
width, largest first. Each field is an array of its own: whole little-endian numbers for 16 and 8 bits; for fewer, 8 /
bits numbers share a byte, the first in its lowest bits; the last byte is filled with zeros.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.protocol.codecs.codec import malformed

WIDEST = 31
_FIELDS = (16, 8, 4, 2, 1)


def fields(width: int) -> list[int]:
    """The widths of the fields, in order."""
    return [field for field in _FIELDS if width & field]


def packed_size(count: int, width: int) -> int:
    """The bytes that `count` numbers take."""
    return sum((count * field + 7) // 8 for field in fields(width))


def pack(codes: npt.NDArray[np.integer[Any]], width: int) -> bytes:
    """The bytes of numbers below 2**width."""
    parts: list[bytes] = []
    shift = 0
    for field in fields(width):
        part = codes if shift == 0 else codes >> shift
        if field != width - shift:
            part = part & ((1 << field) - 1)
        parts.append(part.astype("<u2" if field == 16 else np.uint8).tobytes() if field >= 8 else _fold(part, field))
        shift += field
    return b"".join(parts)


def fold(codes: npt.NDArray[np.uint8], field: int) -> npt.NDArray[np.uint8]:
    """Neighbours along the last axis share bytes; its length must be a multiple of 8 / field, and field 1, 2 or 4."""
    if field == 1:
        return np.packbits(codes, axis=-1, bitorder="little")
    while field < 8:
        pairs = codes.view("<u2")
        codes = (pairs | (pairs >> (8 - field))).astype(np.uint8)
        field *= 2
    return codes


def _fold(codes: npt.NDArray[np.integer[Any]], field: int) -> bytes:
    narrow = np.ascontiguousarray(codes, np.uint8)
    missing = -narrow.size % (8 // field)
    return fold(np.pad(narrow, (0, missing)) if missing else narrow, field).tobytes()


def unpack(data: bytes | memoryview, count: int, width: int) -> npt.NDArray[np.uint32]:
    """The numbers again. Raises errors.UpdateRefused (``malformed``) where the filling is not zero."""
    codes, at, shift = np.zeros(count, np.uint32), 0, 0
    for field in fields(width):
        size = (count * field + 7) // 8
        piece = np.frombuffer(data, np.uint8, size, at)
        if field >= 8:
            values = piece.view("<u2") if field == 16 else piece
        else:
            values = unfold(piece, field)
            if values[count:].any():
                raise malformed("A packed array is not filled with zeros")
            values = values[:count]
        codes |= values.astype(np.uint32) << np.uint32(shift)
        at, shift = at + size, shift + field
    return codes


def unfold(piece: npt.NDArray[np.uint8], field: int) -> npt.NDArray[np.uint8]:
    """The inverse of `fold`."""
    if field == 1:
        return np.unpackbits(piece, axis=-1, bitorder="little")
    used = 8
    while used > field:
        used //= 2
        mask = (1 << used) - 1
        wide = piece.astype("<u2")
        piece = ((wide | (wide << (8 - used))) & (mask | mask << 8)).astype("<u2").view(np.uint8)
    return piece
