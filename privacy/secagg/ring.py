"""The numbers that are added up: a vector of named segments, each a ring of whole numbers modulo 2**bits.

In memory a vector is one uint32 per coordinate, whatever its ring: 2**bits divides 2**32, so sums and masks may wrap
around, and only the lowest `bits` count. On the wire each coordinate takes `bits` bits: segments follow one another,
each packed by `protocol.codecs.packing` (fields of 16, 8, 4, 2 and 1 bits; for 32 bits the words themselves), and fills
whole bytes. There is no ring above 32 bits: browsers have no fast 64-bit words, and a sum of 16-bit numbers over 65 536
clients fits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.privacy.secagg import fields
from coterie.protocol.canonical import LARGEST_INTEGER, digest_of, first_repeated

MOST_BITS = fields.WIDEST
MOST_SEGMENTS = 256
WORD = np.dtype("<u4")

RingVector = npt.NDArray[np.uint32]
"""A vector in the ring: one word per coordinate, of which the segment's lowest bits count."""


@dataclass(frozen=True)
class Segment:
    """`length` coordinates modulo 2**`bits`, bits from 1 to 32."""

    name: str
    length: int
    bits: int

    @property
    def modulus(self) -> int:
        """2**bits."""
        return 1 << self.bits

    @property
    def packed_bytes(self) -> int:
        """The bytes that the segment takes on the wire."""
        return fields.packed_size(self.length, self.bits)


@dataclass(frozen=True)
class VectorSpec:
    """The segments of a vector, in order.

    Raises errors.ArgumentValueError (``secagg_vector``) for no segment or over 256, for a name that stands there twice,
    and for a length or number of bits that cannot be.
    """

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.segments) <= MOST_SEGMENTS:
            raise _refused(f"A masked vector has 1 to {MOST_SEGMENTS} segments, not {len(self.segments)}")
        repeated = first_repeated(segment.name for segment in self.segments)
        if repeated is not None:
            raise _refused(f"A masked vector has the segment {repeated[:64]!r} twice")
        for segment in self.segments:
            if not 1 <= segment.bits <= MOST_BITS:
                raise _refused(f"Segment {segment.name[:64]!r} has a ring of 1 to 32 bits, not {segment.bits}")
            if not 1 <= segment.length <= LARGEST_INTEGER:
                raise _refused(f"Segment {segment.name[:64]!r} has {segment.length} coordinates; it needs one or more")
        if self.length > LARGEST_LENGTH:
            raise _refused(f"A masked vector has at most {LARGEST_LENGTH} coordinates, not {self.length}")

    @cached_property
    def length(self) -> int:
        """The number of coordinates."""
        return sum(segment.length for segment in self.segments)

    @cached_property
    def packed_bytes(self) -> int:
        """The bytes of a packed vector."""
        return sum(segment.packed_bytes for segment in self.segments)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON ``[[name, length, bits], …]``, as 64 hex digits."""
        return digest_of([[segment.name, segment.length, segment.bits] for segment in self.segments])

    def places(self) -> dict[str, slice]:
        """Segment → where its coordinates lie in the vector."""
        found: dict[str, slice] = {}
        start = 0
        for segment in self.segments:
            found[segment.name] = slice(start, start + segment.length)
            start += segment.length
        return found


LARGEST_LENGTH = 1 << 34
"""The longest vector: a mask's 32-bit block counter reaches no farther."""


def reduced(vector: RingVector, spec: VectorSpec) -> RingVector:
    """A new vector with every coordinate modulo 2**bits of its segment."""
    check_length(vector, spec)
    result = vector.astype(np.uint32)
    for segment, place in zip(spec.segments, spec.places().values(), strict=True):
        if segment.bits < MOST_BITS:
            result[place] &= np.uint32(segment.modulus - 1)
    return result


def pack(vector: RingVector, spec: VectorSpec) -> bytes:
    """The bytes of a vector on the wire, `spec.packed_bytes` of them; bits above each segment's are left out."""
    check_length(vector, spec)
    out = np.empty(spec.packed_bytes, np.uint8)
    for segment, place, piece in pieces(spec, out):
        fields.pack_into(piece, vector[place], segment.bits)
    return out.tobytes()


def unpack(data: bytes | memoryview, spec: VectorSpec) -> RingVector:
    """The vector again, each coordinate below its segment's modulus. Raises errors.UpdateRefused as `add_packed`."""
    result = np.zeros(spec.length, np.uint32)
    add_packed(result, data, spec)
    return result


def add_packed(total: RingVector, data: bytes | memoryview, spec: VectorSpec) -> None:
    """Add a packed vector to `total`, in place, modulo 2**32 (so modulo each segment's 2**bits: see `reduced`).

    Raises errors.UpdateRefused: ``truncated`` or ``too_large`` for another number of bytes than `spec.packed_bytes`,
    ``malformed`` where bits that fill up a byte are not zero. `total` is then as it was.
    """
    check_length(total, spec)
    if len(data) != spec.packed_bytes:
        raise errors.UpdateRefused(
            f"A masked vector of {spec.length} coordinates has {spec.packed_bytes} bytes, not {len(data)}.",
            code="truncated" if len(data) < spec.packed_bytes else "too_large",
        )
    found = list(pieces(spec, np.frombuffer(data, np.uint8)))
    for segment, _, piece in found:
        fields.check_filling(piece, segment.length, segment.bits)
    for segment, place, piece in found:
        fields.add_packed(total[place], piece, segment.bits)


def pieces(spec: VectorSpec, packed: npt.NDArray[np.uint8]) -> Iterator[tuple[Segment, slice, npt.NDArray[np.uint8]]]:
    """Each segment, where it lies in a vector, and its part of a packed one."""
    at = 0
    for segment, place in zip(spec.segments, spec.places().values(), strict=True):
        yield segment, place, packed[at : at + segment.packed_bytes]
        at += segment.packed_bytes


def check_length(vector: RingVector, spec: VectorSpec) -> None:
    """Raises errors.ArgumentValueError (``secagg_vector``) unless the vector has one uint32 for each coordinate."""
    if vector.shape != (spec.length,) or vector.dtype != np.uint32:
        raise _refused(f"A vector of this shape has {spec.length} uint32 words, not {vector.shape} of {vector.dtype}")


def _refused(message: str) -> errors.ArgumentValueError:
    return errors.ArgumentValueError(f"{message}.", code="secagg_vector")
