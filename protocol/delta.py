"""The difference between two model versions, from which a device that has the one makes the other, bit for bit.

A delta goes between files of one length. It begins with ``CTD1`` and a byte that says how the rest is coded:

    1  levels   the files' headers are the same, and every float32 of the new file is that of the old one plus
                q · 2**e, rounded once: an exponent e for each block of 4096 numbers (int8), then the levels q, -127 to
                127, Golomb-Rice coded (see codecs.levels). A version is like that if `coarse` made it.
    2  planes   any two files: both are read as 32-bit words, filled up with zeros; words are taken in the order of the
                floats they are, the differences as 0, -1, 1, -2, 2 … = 0, 1, 2, 3, 4 …, modulo 2**32; first the lowest
                bytes of all, then the next, and so on; zstd.

What a delta yields must still be held against the SHA-256 that the version is known by.
"""

import mmap
import struct
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import zstandard

from coterie import errors
from coterie.protocol.codecs.levels import BLOCK, Coded

MAGIC = b"CTD1"
ASKED = "coterie-delta"
"""What a client puts into ``A-IM`` to be given deltas (RFC 3229)."""
_LEVELS, _PLANES = 1, 2
_WORD = 4
_MOST = 127
_CODED = Coded(8)
_LOWEST, _HIGHEST = -120, 120
_COMPRESSION = 3
_AT_ONCE: Final = 64 * BLOCK
"""How many words of a file are worked on at a time."""

Buffer = bytes | mmap.mmap
Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]


def encode_delta(old: Buffer, new: Buffer) -> Iterator[bytes] | None:
    """The delta that turns `old` into `new`, in pieces; None for files of different lengths.

    Takes some megabytes of memory, and a byte for each number of a delta of levels.
    """
    return _pieces(old, new) if len(old) == len(new) else None


def _pieces(old: Buffer, new: Buffer) -> Iterator[bytes]:
    levels = _levels(old, new)
    if levels is not None:
        yield from (MAGIC, bytes([_LEVELS]), *levels)
        return
    yield from (MAGIC, bytes([_PLANES]))
    yield from _planes(old, new)


def decode_delta(old: bytes, delta: bytes) -> bytes:
    """The new file.

    Allocates a few times the length of `old`, whatever the delta says. Raises errors.InputError (``delta_malformed``).
    """
    if delta[:4] != MAGIC or len(delta) < 5 or delta[4] not in (_LEVELS, _PLANES):
        raise _malformed("it does not start with the magic bytes of a delta")
    body = memoryview(delta)[5:]
    try:
        return _from_levels(old, body) if delta[4] == _LEVELS else _from_planes(old, body)
    except errors.UpdateRefused as error:
        raise _malformed(error.message.rstrip(".")) from None


def coarse(base: Floats, wanted: npt.NDArray[np.float64]) -> Floats:
    """A vector close to `wanted` that is `base` plus levels, so that its delta takes a byte for each number or less.

    base, wanted: ``[n]`` as the file of a version holds them. The error of each number is at most half a step, a step
    being at most 1/63 of its block's largest change, and the rounding of float32. Whoever publishes coarse versions
    adds what was lost to the next change (error feedback), so that nothing is lost for good.
    """
    change = wanted - base
    exponents = _exponents(change)
    steps = np.ldexp(1.0, np.repeat(exponents, BLOCK)[: base.size].astype(np.int32))
    levels = np.clip(np.rint(change / steps), -_MOST, _MOST)
    return base + (levels * steps).astype(np.float32)


def _exponents(change: npt.NDArray[np.float64]) -> npt.NDArray[np.int8]:
    """For each block the least e with all of its changes within ±127 · 2**e, but for a rounding of the largest."""
    padded = np.pad(np.abs(change), (0, -change.size % BLOCK)).reshape(-1, BLOCK)
    largest = padded.max(axis=1, initial=0)
    with np.errstate(divide="ignore"):
        exact = np.ceil(np.log2(largest / (_MOST + 0.4)))
    return np.clip(np.where(largest > 0, exact, _LOWEST), _LOWEST, _HIGHEST).astype(np.int8)


def _levels(old: Buffer, new: Buffer) -> list[bytes] | None:
    """The pieces of a body with levels; None where these files are not like that."""
    at = _data_start(old)
    if at is None or old[:at] != new[:at]:
        return None
    exponents, sizes, blocks = list[bytes](), list[bytes](), list[bytes]()
    for low in range(at, len(old), _AT_ONCE * _WORD):
        before, after = (np.frombuffer(file[low : low + _AT_ONCE * _WORD], "<f4") for file in (old, new))
        coded = _coded_levels(before, after)
        if coded is None:
            return None
        steps, packed = coded
        exponents.append(steps.tobytes())
        heads = _CODED.head_bytes(before.size)
        sizes.append(packed[:heads])
        blocks.append(packed[heads:])
    return [*exponents, *sizes, *blocks]


def _coded_levels(before: Floats, after: Floats) -> tuple[npt.NDArray[np.int8], bytes] | None:
    """The exponents and the coded levels between some whole blocks of numbers; None where no levels lead from the one
    to the other.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        change = after.astype(np.float64) - before
        if not np.isfinite(change).all():
            return None
        exponents = _exponents(change)
        steps = np.ldexp(1.0, np.repeat(exponents, BLOCK)[: change.size].astype(np.int32))
        levels = np.rint(change / steps)
        reached = before + (levels * steps).astype(np.float32)
        if np.abs(levels).max(initial=0) > _MOST or reached.tobytes() != after.tobytes():
            return None
    return exponents, _CODED.pack(levels.astype(np.int32))


def _from_levels(old: bytes, body: memoryview) -> bytes:
    at = _data_start(old)
    if at is None:
        raise _malformed("it has levels, but the old file does not hold float32 numbers")
    before = np.frombuffer(old, "<f4", offset=at)
    blocks = -(-before.size // BLOCK)
    if not blocks + _CODED.min_bytes(before.size) <= len(body) <= blocks + _CODED.max_bytes(before.size):
        raise _malformed(f"{len(body)} bytes of levels do not fit {before.size} numbers")
    exponents = np.frombuffer(body[:blocks], np.int8)
    if bool((np.abs(exponents.astype(np.int32)) > _HIGHEST).any()):
        raise _malformed(f"an exponent is beyond {_HIGHEST}")
    pieces = [old[:at]]
    for block, exponent in enumerate(exponents.tolist()):
        low, high = block * BLOCK, min((block + 1) * BLOCK, before.size)
        levels = _CODED.unpack(body, blocks, before.size, low, high)
        with np.errstate(over="ignore", invalid="ignore"):
            pieces.append((before[low:high] + np.ldexp(np.float32(1), exponent) * levels.astype(np.float32)).tobytes())
    return b"".join(pieces)


def _data_start(file: Buffer) -> int | None:
    """Where the numbers of a tensor file begin, if what follows its header are whole 32-bit words."""
    if len(file) < 8:
        return None
    at = 8 + struct.unpack_from("<Q", file)[0]
    return at if at <= len(file) and (len(file) - at) % _WORD == 0 else None


def _planes(old: Buffer, new: Buffer) -> Iterator[bytes]:
    """The compressed planes. Each plane is made from the files anew, so that none has to be kept."""
    words = -(-len(new) // _WORD)
    packing = zstandard.ZstdCompressor(level=_COMPRESSION).compressobj(size=words * _WORD)
    for plane in range(_WORD):
        for low in range(0, len(new), _AT_ONCE * _WORD):
            here, there = (_ordered(file[low : low + _AT_ONCE * _WORD]) for file in (old, new))
            difference = (there - here).view(np.int32)
            numbers = ((difference << 1) ^ (difference >> 31)).view(np.uint32)
            yield packing.compress(((numbers >> np.uint32(8 * plane)) & np.uint32(0xFF)).astype(np.uint8).tobytes())
    yield packing.flush()


def _from_planes(old: bytes, body: memoryview) -> bytes:
    words = _ordered(old)
    try:
        # A frame that names its size is allocated as it says, so what it says is looked at first.
        if zstandard.frame_content_size(body) != words.nbytes:
            raise _malformed("its planes are not as long as the file")
        planes = zstandard.ZstdDecompressor().decompress(body, max_output_size=words.nbytes)
    except zstandard.ZstdError as error:
        raise _malformed(f"its planes do not unpack ({error})") from None
    if len(planes) != words.nbytes:
        raise _malformed("its planes are not as long as the file")
    numbers = np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(_WORD, -1).T).view("<u4").reshape(-1)
    difference = (numbers >> np.uint32(1)) ^ (np.uint32(0) - (numbers & np.uint32(1)))
    restored = _unordered(words + difference).astype("<u4").tobytes()
    return restored[: len(old)]


def _ordered(file: bytes) -> Words:
    """The words of a file, mapped so that their order is that of the floats they are."""
    words = np.frombuffer(file + bytes(-len(file) % _WORD), "<u4").astype(np.uint32)
    return np.where(words >> np.uint32(31), ~words, words | np.uint32(1 << 31))


def _unordered(words: Words) -> Words:
    return np.where(words >> np.uint32(31), words & np.uint32((1 << 31) - 1), ~words)


def _malformed(why: str) -> errors.InputError:
    return errors.InputError(f"The delta of a model version cannot be used: {why}.", code="delta_malformed")
