"""``+ef``: error feedback. What a codec lost is added to the next update that this client makes.

    v = x + e        what is encoded
    e' = v - v'      kept if the update counts; v' is what everybody else decodes

Around codecs that shorten the error, ‖v - v'‖ < ‖v‖, so that it stays bounded. A client that was not asked for some
rounds has an error that belongs to an older model: `faded` shrinks it by `FADING` for each round missed.
Seide et al. 2014; Karimireddy et al. 2019 (arXiv:1901.09847).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.protocol.codecs.codec import Codec, CodecState, Keys, Payload, Shape, as_float32

RESIDUAL = "residual"
FADING = 0.95


@dataclass(frozen=True)
class Feedback:
    """A codec with error feedback. Its payloads are those of the inner codec."""

    inner: Codec

    @property
    def name(self) -> str:
        """The inner codec's name and ``+ef``."""
        return f"{self.inner.name}+ef"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The inner codec's."""
        return self.inner.dtype

    @property
    def stateful(self) -> bool:
        """Yes: the error of the last update that counted, float32, as long as the vector."""
        return True

    def min_bytes(self, shape: Shape) -> int:
        """The inner codec's."""
        return self.inner.min_bytes(shape)

    def max_bytes(self, shape: Shape) -> int:
        """The inner codec's."""
        return self.inner.max_bytes(shape)

    def encode(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape, state: CodecState) -> tuple[bytes, CodecState]:
        """See Codec.encode. An error of another length (the layout changed) is forgotten."""
        wanted = as_float32(vector, shape)
        before = state.get(RESIDUAL)
        if before is not None and before.shape == wanted.shape:
            with np.errstate(over="ignore"):
                wanted = wanted + before
            if not np.isfinite(wanted).all():
                raise errors.UpdateRefused(
                    "The update and the error kept from the last one overflow together.",
                    hint="Clip the delta.",
                    code="out_of_range",
                )
        payload, kept = self.inner.encode(wanted, keys, shape, state)
        decoded = self.inner.decode(payload, keys, shape, 0, shape.length)
        return payload, {**kept, RESIDUAL: wanted - decoded}

    def decode(self, payload: Payload, keys: Keys, shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
        """See Codec.decode."""
        return self.inner.decode(payload, keys, shape, start, stop)


def faded(state: Mapping[str, npt.NDArray[np.float32]], missed: int) -> CodecState:
    """A state after `missed` rounds without an update that counted: errors times ``FADING**missed``."""
    if missed <= 0:
        return state
    factor = np.float32(FADING**missed)
    return {name: value * factor if name.rpartition("/")[2] == RESIDUAL else value for name, value in state.items()}
