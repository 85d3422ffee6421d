"""One segment of a masked vector as bytes, tile by tile: the layout of `protocol.codecs.packing`, straight into place.

A number of `bits` bits is cut into fields of 16, 8, 4, 2 and 1 bits from its lowest bit on, and each field is an array
of its own; 32 bits are little-endian words. A client packs, and the coordinator adds, as many numbers as there are
parameters, so both go through the vector once, in pieces that stay in the processor's cache.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.protocol.codecs import packing

WIDEST = 32
TILE = 1 << 15
"""Numbers done at once: 128 KiB. A multiple of 8, so that every field's piece begins with a byte."""

_Bytes = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.uint32]


def packed_size(count: int, bits: int) -> int:
    """The bytes that `count` numbers of `bits` bits take."""
    return 4 * count if bits == WIDEST else packing.packed_size(count, bits)


def pack_into(out: _Bytes, values: _Words, bits: int) -> None:
    """Write the lowest `bits` bits of each number to `out`, which has exactly `packed_size` bytes."""
    for low in range(0, values.size, TILE):
        pack_tile(out, values.size, bits, low, values[low : low + TILE])


def pack_tile(out: _Bytes, count: int, bits: int, low: int, tile: _Words) -> None:
    """Write to `out` those of `count` numbers that begin at `low`, a multiple of `TILE`; at most `TILE` of them."""
    shifted = np.empty(tile.size, np.uint32)
    shift = 0
    for field, part in _parts(out, count, bits):
        np.right_shift(tile, np.uint32(shift), out=shifted)
        _cut(part[low * field // 8 : packed_size(low + tile.size, field)], shifted, field)
        shift += field


def check_filling(data: _Bytes, count: int, bits: int) -> None:
    """Raises errors.UpdateRefused (``malformed``) where bits that fill up a byte are not zero.

    data: exactly `packed_size` bytes.
    """
    for field, part in _parts(data, count, bits):
        used = count * field % 8
        if used and part[-1] >> used:
            raise errors.UpdateRefused("The last byte of a packed vector is not filled with zeros.", code="malformed")


def add_packed(total: _Words, data: _Bytes, bits: int) -> None:
    """Add the numbers of `pack_into` to `total`, in place, modulo 2**32.

    data: exactly `packed_size` bytes.
    """
    parts = list(_parts(data, total.size, bits))
    scratch = np.empty(min(TILE, total.size), np.uint32)
    for low in range(0, total.size, TILE):
        tile = total[low : low + TILE]
        words = scratch[: tile.size]
        shift = 0
        for field, part in parts:
            numbers = _read(part[low * field // 8 : packed_size(low + tile.size, field)], field)[: tile.size]
            np.copyto(words, numbers)
            np.left_shift(words, np.uint32(shift), out=words)
            np.add(tile, words, out=tile)
            shift += field


def _parts(data: _Bytes, count: int, bits: int) -> Iterator[tuple[int, _Bytes]]:
    """Each field's width, and its bytes."""
    at = 0
    for field in (WIDEST,) if bits == WIDEST else packing.fields(bits):
        size = packed_size(count, field)
        yield field, data[at : at + size]
        at += size


def _cut(out: _Bytes, numbers: _Words, field: int) -> None:
    """Write the lowest `field` bits of each number."""
    if field >= 8:
        np.copyto(out.view(f"<u{field // 8}"), numbers, casting="unsafe")
        return
    narrow = numbers.astype(np.uint8)
    narrow &= np.uint8((1 << field) - 1)
    missing = -narrow.size % (8 // field)
    out[:] = packing.fold(np.pad(narrow, (0, missing)) if missing else narrow, field)


def _read(piece: _Bytes, field: int) -> npt.NDArray[Any]:
    """The numbers of one field, and those that fill up the last byte."""
    return piece.view(f"<u{field // 8}") if field >= 8 else packing.unfold(piece, field)
