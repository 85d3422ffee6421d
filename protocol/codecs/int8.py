"""``int8`` and ``int8:channel``: one byte per element and one float32 scale per segment or per row.

Symmetric, rounded to nearest. A segment (a tensor), or with ``:channel`` each row of one (a slice along its first
dimension), has its own scale. Payload: the scales (float32), then the elements (int8, -127 … 127); with ``+rice`` these
as `levels.Coded`. All arithmetic is IEEE 754 float32 with round to nearest, ties to even, so encode and decode are
bit-exact in every language:

    scale = max|x| / 127            one division
    q     = clip(rint(x / scale), -127, 127), or 0 where scale is 0
    x'    = float32(q) * scale      one product

For scales that are normal numbers |x - x'| ≤ 0.50002 · scale. Nearest rounding is biased: many clients that round
the same way do not cancel.
"""

from dataclasses import dataclass, replace
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
    check_range,
    check_vector,
    malformed,
    read_payload,
)
from coterie.protocol.codecs.levels import Coded
from coterie.protocol.codecs.stochastic import check_units

_LEVELS = np.float32(127)
_SCALE = np.dtype("<f4")
_CODED = Coded(8)


@dataclass(frozen=True, kw_only=True)
class Int8(Memoryless):
    """See the module's docstring. A run whose magnitudes are all below 127 · 2**-149 decodes to zeros."""

    name: str
    by_row: bool
    is_coded: bool = False

    def coded(self) -> "Int8":
        """The same with entropy coded levels."""
        if self.is_coded:
            raise ValueError(f"{self.name} is entropy coded already")
        return replace(self, name=f"{self.name}+rice", is_coded=True)

    def min_bytes(self, shape: Shape) -> int:
        """Four bytes per scale and one per element, fewer when coded."""
        return self._head(shape) + (_CODED.min_bytes(shape.length) if self.is_coded else shape.length)

    def max_bytes(self, shape: Shape) -> int:
        """Four bytes per scale and one per element, a few more when coded."""
        return self._head(shape) + (_CODED.max_bytes(shape.length) if self.is_coded else shape.length)

    def encode(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape, state: CodecState) -> tuple[bytes, CodecState]:
        """See Codec.encode."""
        check_vector(vector, shape)
        scales: list[npt.NDArray[np.float32]] = []
        levels = np.zeros(vector.size, np.int8)
        for (start, stop), rows in zip(shape.bounds, shape.rows, strict=True):
            with np.errstate(over="ignore", under="ignore"):
                values = vector[start:stop].astype(np.float32).reshape(rows if self.by_row else 1, -1)
            found, codes = _quantise(values, start)
            scales.append(found)
            levels[start:stop] = codes.reshape(-1)
        body = _CODED.pack(levels.astype(np.int32)) if self.is_coded else levels.tobytes()
        return np.concatenate(scales).astype(_SCALE).tobytes() + body, NO_STATE

    def decode(self, payload: Payload, keys: Keys, shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
        """See Codec.decode.

        Refuses a scale that is negative or not finite, and the level -128, which no encoder writes.
        """
        check_range(shape.length, start, stop)
        head = self._head(shape)
        if self.is_coded:
            levels = _CODED.unpack(payload, head, shape.length, start, stop)
        else:
            levels = np.frombuffer(read_payload(payload, head + start, head + stop), np.int8)
        if levels.size and int(levels.min()) == -128:
            raise malformed("An int8 payload holds the level -128; levels are -127 to 127")
        vector = levels.astype(np.float32)
        at = 0
        for (low, high), rows in zip(shape.bounds, shape.rows, strict=True):
            count = rows if self.by_row else 1
            if low < stop and start < high:
                self._scale(vector, payload, at, (low, high, count), start, stop)
            at += count
        return vector

    def _scale(
        self,
        vector: npt.NDArray[np.float32],
        payload: Payload,
        at: int,
        segment: tuple[int, int, int],
        start: int,
        stop: int,
    ) -> None:
        """Multiply the part of a segment that lies in [start, stop) by the scales that begin with number `at`."""
        low, high, count = segment
        width = (high - low) // count
        first, last = (max(low, start) - low) // width, -(-(min(high, stop) - low) // width)
        data = read_payload(payload, _SCALE.itemsize * (at + first), _SCALE.itemsize * (at + last))
        scales = np.frombuffer(data, _SCALE)
        check_units(scales, at + first)
        part = vector[max(low, start) - start : min(high, stop) - start]
        offset = max(low, start) - low - first * width
        with np.errstate(over="ignore", under="ignore"):
            part *= scales[0] if scales.size == 1 else np.repeat(scales, width)[offset : offset + part.size]

    def _head(self, shape: Shape) -> int:
        return _SCALE.itemsize * (sum(shape.rows) if self.by_row else len(shape.segments))


def _quantise(values: npt.NDArray[np.float32], start: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int8]]:
    """Scales and levels of the rows of a segment that begins at element `start`."""
    largest = np.max(np.abs(values), axis=1, initial=np.float32(0))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scales = largest / _LEVELS
        if not np.isfinite(scales * _LEVELS).all():
            raise errors.UpdateRefused(
                f"The segment at element {start} reaches {largest.max()}, beyond what int8 with a float32 scale can "
                "hold.",
                hint="Use the codec float32 or clip the delta.",
                code="out_of_range",
            )
        divisors = np.where(scales > 0, scales, np.float32(1))[:, None]
        levels = np.clip(np.rint(values / divisors), -_LEVELS, _LEVELS).astype(np.int8)
    levels[scales == 0] = 0
    return scales, levels


INT8 = Int8(name="int8", by_row=False)
INT8_CHANNEL = Int8(name="int8:channel", by_row=True)
