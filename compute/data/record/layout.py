"""What the bytes of a record file are.

A record file is a row of frames, each at a multiple of ALIGNMENT from the file's start, and numbers are little-endian:

    frame    magic "cRec", kind u8, version u8, zero u16, count u32, length u64, CRC-32 of the payload u32,
             zero u32, CRC-32 of the 28 bytes before u32; then the payload of that length, a multiple of ALIGNMENT
    header   kind 1, the first frame, once: the columns as JSON, filled up with spaces
    block    kind 2: ``count`` rows, column after column (see `coterie.compute.data.record.block`)
    index    kind 3: where the index before it is (u64, 0 for none) and how many blocks are listed there and before
             (u64); for each of ``count`` blocks since then its place u64 and rows u64; at the end the trailer: magic
             "cRecEnd", zero u8, the place of this index u64, all rows u64, zero u32, CRC-32 of the 28 bytes before u32

A file that is complete ends in an index. Nothing that was written is ever written over: appending adds blocks and
another index, so that whatever an index lists can be read for ever, whenever a writer is killed. Every byte is under a
checksum (CRC-32 of ISO 3309, as in zlib): any damage of up to 32 bits in a row is found for sure.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from coterie.errors import DataError

ALIGNMENT = 32
VERSION = 1
FRAME_MAGIC, TRAILER_MAGIC = b"cRec", b"cRecEnd\0"
_HEAD = struct.Struct("<4sBBHIQII")
_TRAILER = struct.Struct("<8sQQI")
_CHECKSUM = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size
TRAILER_BYTES = _TRAILER.size + _CHECKSUM.size


class Kind(IntEnum):
    """What a frame holds."""

    HEADER = 1
    BLOCK = 2
    INDEX = 3


@dataclass(frozen=True, slots=True)
class Frame:
    """The head of a frame. at: its place in the file; count, length, checksum: as the layout says."""

    at: int
    kind: Kind
    count: int
    length: int
    checksum: int

    @property
    def payload(self) -> slice:
        """Where the payload lies in the file."""
        return slice(self.at + HEAD_BYTES, self.end)

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        return self.at + HEAD_BYTES + self.length


class Damaged(Exception):
    """These bytes are not what the layout says. at: their place in the file. what: the rest of the sentence."""

    def __init__(
        self, at: int, what: str, hint: str = "Copy the file again from where it came, or write it again."
    ) -> None:
        super().__init__(at, what)
        self.at, self.what, self.hint = at, what, hint

    def refusal(self, name: str) -> DataError:
        """The error for whoever reads the file of that name."""
        return DataError(
            f"{name}: this is no intact record file; at byte {self.at} {self.what}.",
            hint=self.hint,
            code="record_damaged",
            at=self.at,
        )


def padding(size: int) -> int:
    """How many bytes are missing to a multiple of ALIGNMENT."""
    return -size % ALIGNMENT


def framed(kind: Kind, count: int, payload: bytes) -> bytes:
    """A frame. payload: of a length that is a multiple of ALIGNMENT."""
    head = _HEAD.pack(FRAME_MAGIC, kind, VERSION, 0, count, len(payload), zlib.crc32(payload), 0)
    return head + _CHECKSUM.pack(zlib.crc32(head)) + payload


def frame_at(data: memoryview, at: int) -> Frame:
    """The head of the frame at this place of a file; its payload lies within the file, but is not checked.

    Raises Damaged.
    """
    raw = bytes(data[at : at + HEAD_BYTES])
    if at < 0 or at % ALIGNMENT or len(raw) < HEAD_BYTES:
        raise Damaged(at, "there is no room for a frame")
    (checksum,) = _CHECKSUM.unpack(raw[_HEAD.size :])
    magic, kind, version, zero, count, length, payload_checksum, other_zero = _HEAD.unpack(raw[: _HEAD.size])
    if magic != FRAME_MAGIC or zlib.crc32(raw[: _HEAD.size]) != checksum:
        raise Damaged(at, "there is no frame")
    if version != VERSION:
        raise Damaged(
            at, f"stands version {version} of the format", f"This release of coterie reads version {VERSION}."
        )
    if kind not in {*Kind} or zero or other_zero or length % ALIGNMENT:
        raise Damaged(at, "the frame is of no known kind")
    frame = Frame(at, Kind(kind), count, length, payload_checksum)
    if frame.end > len(data):
        raise Damaged(at, f"the frame has {length} bytes, the file ends before")
    return frame


def checked_payload(data: memoryview, frame: Frame) -> memoryview:
    """The payload. Raises Damaged where its checksum is not right."""
    payload = data[frame.payload]
    if zlib.crc32(payload) != frame.checksum:
        raise Damaged(frame.at, f"the checksum of the {frame.kind.name.lower()} is not right")
    return payload


def trailer(index_at: int, rows: int) -> bytes:
    """The end of an index."""
    body = _TRAILER.pack(TRAILER_MAGIC, index_at, rows, 0)
    return body + _CHECKSUM.pack(zlib.crc32(body))


def trailer_of(data: memoryview) -> tuple[int, int] | None:
    """Where the last index begins, and the number of rows; None where the file does not end in a trailer."""
    raw = bytes(data[-TRAILER_BYTES:])
    if len(raw) < TRAILER_BYTES or _CHECKSUM.unpack(raw[_TRAILER.size :])[0] != zlib.crc32(raw[: _TRAILER.size]):
        return None
    magic, index_at, rows, _ = _TRAILER.unpack(raw[: _TRAILER.size])
    return (index_at, rows) if magic == TRAILER_MAGIC else None
