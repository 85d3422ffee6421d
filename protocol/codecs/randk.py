"""``randk:p``: a random fraction p of the elements, the same for all updates of one version, divided by p: unbiased.

Payload: the selected elements (see selection) as float32. A decoded element is its value times float32(n / k), k of the
n elements of its block being kept; the others are 0. Mean squared error: (n / k - 1) · ‖x‖². Nothing but values
travels and all clients that train from one version keep the same elements, so sums of their payloads are payloads of
sums. In buffered rounds, whose bases differ, only decoded updates may be added.
Konečný et al. 2016 (arXiv:1610.05492), random mask.
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
    read_payload,
)
from coterie.protocol.codecs.fraction import KeepsFraction
from coterie.protocol.codecs.selection import BLOCK, Selection, kept_count, total

_VALUE = np.dtype("<f4")


@dataclass(frozen=True)
class RandomPart(KeepsFraction):
    """See the module's docstring."""

    family: ClassVar[str] = "randk"

    def min_bytes(self, shape: Shape) -> int:
        """Exactly four bytes for each kept element."""
        return _VALUE.itemsize * total(self.fraction, shape.length)

    def max_bytes(self, shape: Shape) -> int:
        """Exactly four bytes for each kept element."""
        return self.min_bytes(shape)

    def encode(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape, state: CodecState) -> tuple[bytes, CodecState]:
        """See Codec.encode."""
        values = as_float32(vector, shape)
        largest = float(np.abs(values).max(initial=0))
        most = max(self._factor(n) for n in {min(shape.length, BLOCK), shape.length % BLOCK or BLOCK})
        if largest * float(most) > float(np.finfo(np.float32).max):
            raise errors.UpdateRefused(
                f"A magnitude of {largest:g} overflows when divided by the kept fraction.",
                hint="Use the codec float32 or clip the delta.",
                code="out_of_range",
            )
        part = Selection(self.fraction, randomness.derive(keys.shared, "select"), shape.length)
        chosen = [values[block * BLOCK :][part.places(block)] for block in range(part.blocks)]
        return np.concatenate(chosen).astype(_VALUE).tobytes(), NO_STATE

    def decode(self, payload: Payload, keys: Keys, shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
        """See Codec.decode.

        NaN and infinity in a hostile payload come back as they are: Update.check_finite finds them.
        """
        check_range(shape.length, start, stop)
        vector = np.zeros(stop - start, np.float32)
        part = Selection(self.fraction, randomness.derive(keys.shared, "select"), shape.length)
        for block in range(start // BLOCK, -(-stop // BLOCK)) if start < stop else ():
            places = part.places(block) + block * BLOCK
            low, high = (int(edge) for edge in np.searchsorted(places, (start, stop)))
            at = part.before(block)
            data = read_payload(payload, _VALUE.itemsize * (at + low), _VALUE.itemsize * (at + high))
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                vector[places[low:high] - start] = np.frombuffer(data, _VALUE) * self._factor(part.size(block))
        return vector

    def _factor(self, size: int) -> np.float32:
        return np.float32(size / kept_count(self.fraction, size))
