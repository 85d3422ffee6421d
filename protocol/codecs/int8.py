"""One byte per element and one float32 scale per segment: symmetric, rounded to nearest.

Payload: the scales of all segments (float32), then the elements (int8, -127 … 127). All arithmetic is IEEE 754
float32 with round to nearest, ties to even, so encode and decode are bit-exact in every language:

    scale = max|x| / 127            one division
    q     = clip(rint(x / scale), -127, 127), or 0 where scale is 0
    x'    = float32(q) * scale      one product

For scales that are normal numbers |x - x'| ≤ 0.50002 · scale. Nearest rounding is biased: many clients that round
the same way do not cancel.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.protocol.codecs.codec import NO_STATE, Keys, Payload, Shape, State, check_range, check_vector, read_payload

_LEVELS = np.float32(127)
_SCALE = np.dtype("<f4")


@dataclass(frozen=True)
class Int8:
    """See the module's docstring. A segment whose magnitudes are all below 127 · 2**-149 decodes to zeros."""

    name: str = "int8"

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32."""
        return np.dtype("<f4")

    @property
    def stateful(self) -> bool:
        """No."""
        return False

    def min_bytes(self, shape: Shape) -> int:
        """Exactly four bytes per segment and one per element."""
        return _SCALE.itemsize * len(shape.segments) + shape.length

    def max_bytes(self, shape: Shape) -> int:
        """Exactly four bytes per segment and one per element."""
        return _SCALE.itemsize * len(shape.segments) + shape.length

    def encode(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape, state: State) -> tuple[bytes, State]:
        """See Codec.encode."""
        check_vector(vector, shape)
        scales = np.zeros(len(shape.segments), _SCALE)
        levels = np.zeros(vector.size, np.int8)
        for index, (start, stop) in enumerate(shape.bounds):
            with np.errstate(over="ignore", under="ignore"):
                values = vector[start:stop].astype(np.float32)
            scale, codes = _quantise(values, start)
            scales[index] = scale
            levels[start:stop] = codes
        return scales.tobytes() + levels.tobytes(), NO_STATE

    def decode(self, payload: Payload, keys: Keys, shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
        """See Codec.decode.

        Refuses a scale that is negative or not finite, and the level -128, which no encoder writes.
        """
        check_range(shape.length, start, stop)
        head = _SCALE.itemsize * len(shape.segments)
        levels = np.frombuffer(read_payload(payload, head + start, head + stop), np.int8)
        if levels.size and int(levels.min()) == -128:
            raise errors.UpdateRefused(
                "An int8 payload holds the level -128; levels are -127 to 127.", code="malformed"
            )
        vector = levels.astype(np.float32)
        touched = [
            (index, max(low, start) - start, min(high, stop) - start)
            for index, (low, high) in enumerate(shape.bounds)
            if low < stop and start < high
        ]
        if touched:
            first, last = touched[0][0], touched[-1][0]
            scales = np.frombuffer(read_payload(payload, _SCALE.itemsize * first, _SCALE.itemsize * (last + 1)), _SCALE)
            _check_scales(scales, first)
            with np.errstate(over="ignore", under="ignore"):
                for index, low, high in touched:
                    vector[low:high] *= scales[index - first]
        return vector


def _quantise(values: npt.NDArray[np.float32], start: int) -> tuple[np.float32, npt.NDArray[np.int8]]:
    largest = np.max(np.abs(values), initial=np.float32(0))
    with np.errstate(over="ignore", under="ignore"):
        scale = np.float32(largest / _LEVELS)
        if not np.isfinite(largest) or not np.isfinite(scale * _LEVELS):
            raise errors.UpdateRefused(
                f"The segment at element {start} reaches {largest}, beyond what int8 with a float32 scale can hold.",
                hint="Use the codec float32 or clip the delta.",
                code="out_of_range",
            )
        if scale == 0:
            return scale, np.zeros(values.size, np.int8)
        return scale, np.clip(np.rint(values / scale), -_LEVELS, _LEVELS).astype(np.int8)


def _check_scales(scales: npt.NDArray[Any], first: int) -> None:
    if not np.isfinite(scales).all():
        raise errors.UpdateRefused(f"A scale of segment {first} or later is not finite.", code="not_finite")
    if np.signbit(scales).any():
        raise errors.UpdateRefused(f"A scale of segment {first} or later is negative.", code="malformed")


INT8 = Int8()
