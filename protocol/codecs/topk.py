"""``topk:p``: the ⌈p·n⌉ elements of largest magnitude, exactly; the others are 0. Biased: use it with ``+ef``.

Of equal magnitudes the earlier element is kept. The vector is cut into blocks of 65 536 elements. Payload:

    for each block    the number of kept elements and the bytes of their places (32 bits each)
    for each block    the places: the gaps between kept elements, Golomb-Rice coded (see rice), 16 bits wide
    values            of all kept elements, in order, float32

Mean squared error: exactly the energy of what is left out, at most (1 - p) · ‖x‖². Aji and Heafield 2017
(arXiv:1704.05021); Stich et al. 2018 (arXiv:1809.07599) with error feedback.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from coterie.protocol.codecs import rice
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

BLOCK = 1 << 16
_WIDTH = 16
_HEAD = np.dtype([("count", "<u4"), ("size", "<u4")])
_VALUE = np.dtype("<f4")


@dataclass(frozen=True)
class TopK(KeepsFraction):
    """See the module's docstring."""

    family: ClassVar[str] = "topk"

    def min_bytes(self, shape: Shape) -> int:
        """Heads, values, and one bit for each place."""
        kept, blocks = self._kept_count(shape.length), _blocks(shape.length)
        return _HEAD.itemsize * blocks + _VALUE.itemsize * kept + (kept + 7) // 8

    def max_bytes(self, shape: Shape) -> int:
        """Heads, values, and 17 bits for each place, with each block's filling."""
        kept, blocks = self._kept_count(shape.length), _blocks(shape.length)
        return _HEAD.itemsize * blocks + _VALUE.itemsize * kept + kept * 17 // 8 + 3 * blocks

    def encode(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape, state: CodecState) -> tuple[bytes, CodecState]:
        """See Codec.encode."""
        values = as_float32(vector, shape)
        places = largest(np.abs(values), self._kept_count(values.size))
        heads = np.zeros(_blocks(values.size), _HEAD)
        runs: list[bytes] = []
        edges = np.searchsorted(places, np.arange(len(heads) + 1, dtype=np.int64) * BLOCK)
        for block, (low, high) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
            gaps = np.diff(places[low:high] - block * BLOCK, prepend=-1) - 1
            runs.append(rice.encode(gaps.astype(np.uint32), _WIDTH) if gaps.size else b"")
            heads[block] = (high - low, len(runs[-1]))
        return heads.tobytes() + b"".join(runs) + values[places].astype(_VALUE).tobytes(), NO_STATE

    def decode(self, payload: Payload, keys: Keys, shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
        """See Codec.decode.

        NaN and infinity in a hostile payload come back as they are: Update.check_finite finds them.
        """
        check_range(shape.length, start, stop)
        vector = np.zeros(stop - start, np.float32)
        if start == stop:
            return vector
        heads = np.frombuffer(read_payload(payload, 0, _HEAD.itemsize * _blocks(shape.length)), _HEAD)
        counts, sizes = heads["count"].astype(np.int64), heads["size"].astype(np.int64)
        self._check(counts, sizes, shape.length)
        first_value = heads.nbytes + int(sizes.sum())
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            count, size = int(counts[block]), int(sizes[block])
            if not count:
                continue
            at = heads.nbytes + int(sizes[:block].sum())
            gaps = rice.decode(read_payload(payload, at, at + size), count, _WIDTH)
            places = np.cumsum(gaps.astype(np.int64) + 1) - 1 + block * BLOCK
            if int(places[-1]) >= min(shape.length, (block + 1) * BLOCK):
                raise malformed(f"A kept element of block {block} lies outside it")
            low, high = (int(edge) for edge in np.searchsorted(places, (start, stop)))
            at = first_value + _VALUE.itemsize * int(counts[:block].sum())
            data = read_payload(payload, at + _VALUE.itemsize * low, at + _VALUE.itemsize * high)
            vector[places[low:high] - start] = np.frombuffer(data, _VALUE)
        return vector

    def _check(self, counts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], length: int) -> None:
        room = np.full(counts.size, BLOCK)
        room[-1] = length - BLOCK * (counts.size - 1)
        if int(counts.sum()) != self._kept_count(length) or bool((counts > room).any()):
            raise malformed(f"The blocks keep {int(counts.sum())} of {length} elements, or more than they have")
        most = [rice.most_bytes(int(count), _WIDTH) if count else 0 for count in counts]
        if bool((sizes > most).any()):
            raise malformed("A block declares more bytes than its places can take")

    def _kept_count(self, length: int) -> int:
        return min(length, math.ceil(self.fraction * length))


def largest(magnitudes: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.int64]:
    """The places of the `count` largest, rising; of equal ones the earlier."""
    if count == magnitudes.size:
        return np.arange(count)
    least = np.partition(magnitudes, magnitudes.size - count)[magnitudes.size - count]
    above = np.flatnonzero(magnitudes > least)
    ties = np.flatnonzero(magnitudes == least)[: count - above.size]
    return np.sort(np.concatenate([above, ties]))


def _blocks(length: int) -> int:
    return -(-length // BLOCK)
