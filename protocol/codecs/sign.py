"""``sign``: one bit for each element and a magnitude for each segment. Biased: use it with ``+ef``.

Payload: the mean magnitude of every segment (float32; a float64 mean, rounded), then one bit for each element, 1 for
negative, lowest bit of a byte first. A decoded element is its segment's magnitude with its sign. Error feedback with
scaled signs: Karimireddy et al. 2019 (arXiv:1901.09847).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.protocol.codecs.codec import (
    NO_STATE,
    CodecState,
    Keys,
    Memoryless,
    Payload,
    Shape,
    as_float32,
    check_range,
    malformed,
    read_payload,
)
from coterie.protocol.codecs.stochastic import check_units

_MAGNITUDE = np.dtype("<f4")


@dataclass(frozen=True)
class Sign(Memoryless):
    """See the module's docstring."""

    name: str = "sign"

    def min_bytes(self, shape: Shape) -> int:
        """Exactly four bytes for each segment and one bit for each element."""
        return _MAGNITUDE.itemsize * len(shape.segments) + (shape.length + 7) // 8

    def max_bytes(self, shape: Shape) -> int:
        """Exactly four bytes for each segment and one bit for each element."""
        return self.min_bytes(shape)

    def encode(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape, state: CodecState) -> tuple[bytes, CodecState]:
        """See Codec.encode."""
        values = as_float32(vector, shape)
        means = [np.abs(values[low:high]).mean(dtype=np.float64) for low, high in shape.bounds]
        bits = np.packbits(np.signbit(values), bitorder="little")
        return np.array(means, _MAGNITUDE).tobytes() + bits.tobytes(), NO_STATE

    def decode(self, payload: Payload, keys: Keys, shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
        """See Codec.decode. Refuses magnitudes that are negative or not finite, and a filling that is not zero."""
        check_range(shape.length, start, stop)
        if start == stop:
            return np.empty(0, np.float32)
        head, first = _MAGNITUDE.itemsize * len(shape.segments), start // 8
        data = read_payload(payload, head + first, head + (stop + 7) // 8)
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        if stop == shape.length and bits[stop - 8 * first :].any():
            raise malformed("The signs are not filled with zeros")
        negative = bits[start - 8 * first : stop - 8 * first].astype(np.bool_)
        magnitudes = np.frombuffer(read_payload(payload, 0, head), _MAGNITUDE)
        check_units(magnitudes, 0)
        vector = _expand(magnitudes, shape, start, stop)
        return np.where(negative, -vector, vector)


def _expand(magnitudes: npt.NDArray[Any], shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
    vector = np.empty(stop - start, np.float32)
    for magnitude, (low, high) in zip(magnitudes, shape.bounds, strict=True):
        if low < stop and start < high:
            vector[max(low, start) - start : min(high, stop) - start] = magnitude
    return vector


SIGN = Sign()
