"""The plain codecs: elements as IEEE 754 numbers of one width, rounded to nearest, ties to even."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.protocol.codecs.codec import (
    NO_STATE,
    CodecState,
    Keys,
    Memoryless,
    Payload,
    Shape,
    as_float32,
    check_range,
    check_vector,
    read_payload,
)


@dataclass(frozen=True)
class Float:
    """Elements one after another in `stored`, returned in `decoded`.

    float32 and float64 are lossless for vectors of their own dtype. float16 keeps 11 significant bits: relative error
    ≤ 2**-11 for magnitudes in [2**-14, 65504], absolute error ≤ 2**-25 below. A value that would round to infinity is
    refused (``out_of_range``), never saturated: a delta that large means that training diverged, and a silent clip
    would hide it.
    """

    name: str
    stored: np.dtype[Any]
    dtype: np.dtype[Any]

    @property
    def stateful(self) -> bool:
        """No."""
        return False

    def min_bytes(self, shape: Shape) -> int:
        """Exactly the element width times the length."""
        return shape.length * self.stored.itemsize

    def max_bytes(self, shape: Shape) -> int:
        """Exactly the element width times the length."""
        return shape.length * self.stored.itemsize

    def encode(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape, state: CodecState) -> tuple[bytes, CodecState]:
        """See Codec.encode."""
        check_vector(vector, shape)
        with np.errstate(over="ignore", under="ignore"):
            stored = vector.astype(self.stored)
        fits = np.isfinite(stored)
        if not fits.all():
            at = int(np.argmin(fits))
            raise errors.UpdateRefused(
                f"Element {at} is {vector[at]}, beyond the largest {self.name} ({np.finfo(self.stored).max}).",
                hint="Use the codec float32 or clip the delta.",
                code="out_of_range",
            )
        return stored.tobytes(), NO_STATE

    def decode(self, payload: Payload, keys: Keys, shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
        """See Codec.decode.

        NaN and infinity in a hostile payload come back as they are: Update.check_finite finds them.
        """
        check_range(shape.length, start, stop)
        width = self.stored.itemsize
        piece = read_payload(payload, start * width, stop * width)
        return np.frombuffer(piece, self.stored).astype(self.dtype, copy=False)


FLOAT16 = Float("float16", np.dtype("<f2"), np.dtype("<f4"))
FLOAT32 = Float("float32", np.dtype("<f4"), np.dtype("<f4"))
FLOAT64 = Float("float64", np.dtype("<f8"), np.dtype("<f8"))


@dataclass(frozen=True)
class BrainFloat(Memoryless):
    """bfloat16: the upper half of a float32, rounded to nearest, ties to even: 8 significant bits, float32's range.

    Relative error ≤ 2**-8 for normal numbers. A value that would round to infinity is refused (``out_of_range``).
    """

    name: str = "bfloat16"

    def min_bytes(self, shape: Shape) -> int:
        """Exactly two bytes for each element."""
        return 2 * shape.length

    def max_bytes(self, shape: Shape) -> int:
        """Exactly two bytes for each element."""
        return 2 * shape.length

    def encode(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape, state: CodecState) -> tuple[bytes, CodecState]:
        """See Codec.encode."""
        bits = as_float32(vector, shape).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        too_large = (rounded & np.uint32(0x7F80)) == np.uint32(0x7F80)
        if too_large.any():
            at = int(np.argmax(too_large))
            raise errors.UpdateRefused(
                f"Element {at} is {vector[at]}, beyond the largest bfloat16 (3.39e38).",
                hint="Use the codec float32 or clip the delta.",
                code="out_of_range",
            )
        return rounded.astype("<u2").tobytes(), NO_STATE

    def decode(self, payload: Payload, keys: Keys, shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
        """See Codec.decode. NaN and infinity come back as they are, as with `Float`."""
        check_range(shape.length, start, stop)
        halves = np.frombuffer(read_payload(payload, 2 * start, 2 * stop), "<u2")
        return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


BFLOAT16 = BrainFloat()
