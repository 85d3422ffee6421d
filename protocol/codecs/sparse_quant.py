"""``diff_sparse_quant`` and ``diff_sparse_quant:p``: MindSpore Federated's upload compression.

Its three steps: the difference of the weights (what a section holds anyhow); a random part of it, the same for every
client of a round, p = 0.4 unless said; and 8 bits for each kept element between the least and the largest kept value of
its tensor, rounded to nearest:

    scale = (largest - least) / 255            in double precision, as everything here
    q     = rint((x - least) / scale) - 128    ties to even; -128 where scale is 0
    x'    = (q + 128) · scale + least          rounded to float32; elements that are not kept are 0

As in MindSpore what is kept is *not* divided by p, so the mean of many updates falls short by that factor. The part is
chosen as `selection` says, not by MindSpore's generator (whose products overflow a C int, which the language leaves
undefined) so payloads are not MindSpore's. Payload: least and largest of every segment (float64), then the bytes q.

MindSpore Federated documentation, "Device-cloud federated learning: communication compression".
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from coterie import errors, randomness
from coterie.protocol.codecs.codec import (
    NO_STATE,
    CodecState,
    Keys,
    Payload,
    Shape,
    as_float32,
    check_range,
    malformed,
    read_payload,
)
from coterie.protocol.codecs.fraction import KeepsFraction
from coterie.protocol.codecs.selection import BLOCK, Selection, total

USUAL = 0.4
_EDGE = np.dtype("<f8")
_TOP = 255.0
_OFFSET = 128.0


@dataclass(frozen=True)
class SparseQuant(KeepsFraction):
    """See the module's docstring."""

    fraction: float = USUAL

    family: ClassVar[str] = "diff_sparse_quant"
    usual: ClassVar[float | None] = USUAL

    def min_bytes(self, shape: Shape) -> int:
        """Exactly sixteen bytes for each segment and one for each kept element."""
        return 2 * _EDGE.itemsize * len(shape.segments) + total(self.fraction, shape.length)

    def max_bytes(self, shape: Shape) -> int:
        """As `min_bytes`."""
        return self.min_bytes(shape)

    def encode(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape, state: CodecState) -> tuple[bytes, CodecState]:
        """See Codec.encode."""
        as_float32(vector, shape)
        part = self._part(keys, shape)
        places = np.concatenate([part.places(block) + block * BLOCK for block in range(part.blocks)])
        values = vector[places].astype(np.float64)
        edges = np.zeros((len(shape.segments), 2), _EDGE)
        levels = np.empty(values.size, np.int8)
        for index, (low, high) in enumerate(np.searchsorted(places, shape.bounds)):
            if low < high:
                levels[low:high], edges[index] = quantise(values[low:high])
        return edges.tobytes() + levels.tobytes(), NO_STATE

    def decode(self, payload: Payload, keys: Keys, shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
        """See Codec.decode. Refuses edges that fall or are not finite in float32."""
        check_range(shape.length, start, stop)
        vector = np.zeros(stop - start, np.float32)
        head = 2 * _EDGE.itemsize * len(shape.segments)
        edges = np.frombuffer(read_payload(payload, 0, head), _EDGE).reshape(-1, 2)
        with np.errstate(over="ignore", invalid="ignore"):
            finite = np.isfinite(edges.astype(np.float32)).all()
        if not finite:
            raise errors.UpdateRefused("A segment's least or largest value is not finite.", code="not_finite")
        if bool((edges[:, 0] > edges[:, 1]).any()):
            raise malformed("A segment's least value is above its largest")
        part = self._part(keys, shape)
        stops = np.array([high for _, high in shape.bounds])
        for block in range(start // BLOCK, -(-stop // BLOCK)) if start < stop else ():
            places = part.places(block) + block * BLOCK
            low, high = (int(edge) for edge in np.searchsorted(places, (start, stop)))
            at = head + part.before(block)
            levels = np.frombuffer(read_payload(payload, at + low, at + high), np.int8)
            chosen = places[low:high]
            least, largest = edges[np.searchsorted(stops, chosen, side="right")].T
            vector[chosen - start] = restore(levels, least, largest)
        return vector

    def _part(self, keys: Keys, shape: Shape) -> Selection:
        return Selection(self.fraction, randomness.derive(keys.shared, "select"), shape.length)


def quantise(values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int8], tuple[float, float]]:
    """The levels of a run of values, and its least and largest."""
    least, largest = float(values.min()), float(values.max())
    scale = (largest - least) / _TOP
    if scale == 0:
        return np.full(values.size, -128, np.int8), (least, largest)
    return (np.rint((values - least) / scale) - _OFFSET).astype(np.int8), (least, largest)


def restore(levels: npt.NDArray[np.int8], least: Any, largest: Any) -> npt.NDArray[np.float32]:
    """The values that levels stand for, between edges in double precision."""
    scale = (largest - least) / _TOP
    return ((levels.astype(np.float64) + _OFFSET) * scale + least).astype(np.float32)
