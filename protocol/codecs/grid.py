"""``rotate+grid:b`` and ``rotate+grid:b:c``: rotated blocks, rounded at random to a fixed grid that everybody knows.

Made for secure aggregation: what is sent are whole numbers from 0 to 2**b - 1, all clients rotate alike (the seed is
the round's), and decoding is linear, so that the sum of the numbers decodes to the sum of the vectors. After the
rotation (see rotation) an element of a block of size n and norm ‖x‖ is nearly normal with deviation σ = ‖x‖. With u
uniform in [0, 1) from the update's own seed, and k as `EXTENT` says,

    c  = ⌊(y / σ + k) / Δ + u⌋, Δ = 2k / (2**b - 1), held to 0 … 2**b - 1
    x' = Rᵀ(2c - (2**b - 1)) · (Δ/2 · σ / n)        whole numbers, then one product

Up to 12 bits the whole numbers stay below 2**24 and the product is float32's; above, they stay below 2**28, and the
product is float64's, rounded once.

``rotate+grid:b:c`` is the codec of secure aggregation: c is a public bound of the whole vector's norm and σ is what
such a vector has in a block on average, c · √(n / length). Nothing but the numbers is sent. A longer vector is
shortened to c first. ``rotate+grid:b`` sends each block's own σ (as the last factor, float32) before its numbers.

Unbiased but for the part of a normal distribution beyond ±kσ. Mean squared error, in parts of the vector's energy at 2,
3, 4, 6, 8, 12, 16 bits: 0.665, 0.1225, 0.0270, 0.0019, 0.00017, 1.0e-6, 5.6e-9. Suresh et al. 2017 (arXiv:1611.00429).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import randomness
from coterie.protocol.codecs.codec import (
    NO_STATE,
    CodecState,
    Keys,
    Memoryless,
    Payload,
    Shape,
    as_float32,
    check_range,
)
from coterie.protocol.codecs.eden import check_magnitudes, put, split
from coterie.protocol.codecs.packing import fold, unfold
from coterie.protocol.codecs.rotation import Space, Span, blocks, cut, rotate, rotate_back, signs, spans
from coterie.protocol.codecs.stochastic import check_units

EXTENT: Mapping[int, float] = MappingProxyType(
    {
        **{1: 3.0, 2: 3.0, 3: 3.0, 4: 3.0, 5: 3.07, 6: 3.23, 7: 3.6, 8: 4.0},
        **{9: 4.07, 10: 4.36, 11: 4.63, 12: 4.89, 13: 5.14, 14: 5.38, 15: 5.61, 16: 5.83},
    }
)
"""Half of the grid's width in deviations, by bits: few bits gain more by a fine grid than they lose at its ends. From
9 bits on it is where Δ²/6 and what a normal distribution loses beyond ±k are least together.
"""

_SCALE = np.dtype("<f4")
# The most bits at which Rᵀ of a block of 4096 is exact in float32.
_NARROW = 12
Codes = npt.NDArray[Any]
"""Whole numbers of `bits` bits, in one byte each or, above 8 bits, in two."""


@dataclass(frozen=True)
class Grid(Memoryless):
    """See the module's docstring.

    norm: the public bound, None when each block sends its own.
    """

    bits: int
    norm: float | None = None

    def __post_init__(self) -> None:
        if self.bits not in EXTENT:
            raise ValueError(f"rotate+grid takes {min(EXTENT)} to {max(EXTENT)} bits")
        if self.norm is not None and not 1e-15 <= self.norm <= 1e15:
            raise ValueError("rotate+grid takes a norm from 1e-15 to 1e15")

    @property
    def name(self) -> str:
        """``rotate+grid:``, the bits and, if there is one, the norm."""
        if self.norm is None:
            return f"rotate+grid:{self.bits}"
        # A plus sign would begin the name's next piece: 1e+06 is spelled 1e6.
        norm = f"{self.norm:g}".replace("e+0", "e").replace("e+", "e")
        return f"rotate+grid:{self.bits}:{norm}"

    def min_bytes(self, shape: Shape) -> int:
        """Exactly `bits` for each element of the blocks, and four bytes for each block without a public norm."""
        count, elements = blocks(shape.length)
        return elements * self.bits // 8 + (_SCALE.itemsize * count if self.norm is None else 0)

    def max_bytes(self, shape: Shape) -> int:
        """As `min_bytes`."""
        return self.min_bytes(shape)

    def encode(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape, state: CodecState) -> tuple[bytes, CodecState]:
        """See Codec.encode. Refuses magnitudes beyond 1e15 (``out_of_range``)."""
        out = np.empty(self.min_bytes(shape), np.uint8)
        for span, scales, codes in self._rounded(vector, keys, shape):
            packed = fold(codes, self.bits) if self.bits in (1, 2, 4) else codes
            put(out, scales if self.norm is None else None, packed, span, self.bits)
        return out.tobytes(), NO_STATE

    def decode(self, payload: Payload, keys: Keys, shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
        """See Codec.decode. Refuses scales that are negative or not finite."""
        check_range(shape.length, start, stop)
        flips, space = signs(keys.shared), Space.of(shape.length)
        wide = flips.astype(np.float64) if self.bits > _NARROW else None
        vector = np.empty(stop - start, np.float32)
        for span in spans(shape.length):
            low, high = max(span.start, start), min(span.start + span.count * span.size, stop)
            if low >= high:
                continue
            scales, codes = self._read(payload, span, shape.length)
            with np.errstate(over="ignore", under="ignore"):
                if wide is None:
                    whole = rotate_back(2 * codes.astype(np.float32) - np.float32(self.top), flips, space.first)
                else:
                    whole = rotate_back(2.0 * codes - self.top, wide, np.empty(codes.size))
                whole = whole * scales[:, None]
            vector[low - start : high - start] = whole.reshape(-1)[low - span.start : high - span.start]
        return vector

    @property
    def top(self) -> int:
        """The largest number that is sent."""
        return (1 << self.bits) - 1

    def numbers(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape) -> Codes:
        """What secure aggregation adds: one whole number from 0 to `top` for each element of the blocks.

        Raises ValueError without a public norm, errors.UpdateRefused as `encode`.
        """
        if self.norm is None:
            raise ValueError("numbers can be added only on a grid with a public norm")
        return np.concatenate([codes.reshape(-1) for _, _, codes in self._rounded(vector, keys, shape)])

    def of_sum(self, total: npt.NDArray[np.integer[Any]], clients: int, keys: Keys, shape: Shape) -> npt.NDArray[Any]:
        """The sum of the vectors, float64, from the sum of the numbers of `clients` clients of one round.

        Raises ValueError without a public norm.
        """
        if self.norm is None:
            raise ValueError("numbers can be added only on a grid with a public norm")
        flips = signs(keys.shared).astype(np.float64)
        vector = np.empty(shape.length, np.float64)
        for span in spans(shape.length):
            part = total[span.start : span.start + span.count * span.size].astype(np.float64)
            centred = (2 * part - clients * self.top).reshape(span.count, span.size)
            whole = rotate_back(centred, flips, np.empty(part.size))
            values = whole.reshape(-1) * float(self._public(span.size, shape.length))
            vector[span.start : span.start + values.size] = values[: shape.length - span.start]
        return vector

    def _rounded(
        self, vector: npt.NDArray[Any], keys: Keys, shape: Shape
    ) -> list[tuple[Span, npt.NDArray[np.float32], Codes]]:
        """For every span the last factors and the numbers, [count, size]."""
        values = as_float32(vector, shape)
        check_magnitudes(values, self.name)
        flips, seed = signs(keys.shared), randomness.derive(keys.own, "round")
        space = Space.of(values.size)
        if self.norm is not None:
            length = float(np.linalg.norm(values.astype(np.float64)))
            values = values * np.float32(min(1.0, self.norm / length)) if length > 0 else values
        found: list[tuple[Span, npt.NDArray[np.float32], Codes]] = []
        for span in spans(values.size):
            block = cut(values, span)
            if self.norm is None:
                scales = self._factor(np.sqrt(np.einsum("ij,ij->i", block, block)), span.size)
            else:
                scales = np.full(span.count, self._public(span.size, shape.length))
            turned = rotate(block, flips, space)
            # y / (σ Δ), with the factor Δ/2 · σ / n at hand
            with np.errstate(divide="ignore"):
                turned *= np.where(scales > 0, 1 / (scales * np.float32(2 * span.size)), 0)[:, None].astype(np.float32)
            turned += np.float32(self.top / 2)
            draws = randomness.uniforms(seed, span.start, span.start + block.size).reshape(block.shape)
            codes = np.clip(np.floor(turned + draws), 0, self.top).astype(np.uint8 if self.bits <= 8 else np.uint16)
            found.append((span, scales, codes))
        return found

    def _read(self, payload: Payload, span: Span, length: int) -> tuple[npt.NDArray[np.float32], Codes]:
        if self.norm is None:
            scales, packed = split(payload, span, self.bits, scaled=True)
            check_units(scales, span.first)
        else:
            scales = np.full(span.count, self._public(span.size, length))
            _, packed = split(payload, span, self.bits, scaled=False)
        return scales, unfold(packed, self.bits) if self.bits in (1, 2, 4) else packed

    def _factor(self, deviation: npt.NDArray[np.floating[Any]], size: int) -> npt.NDArray[np.float32]:
        """Δ/2 · σ / n."""
        half_step = EXTENT[self.bits] / self.top
        return (deviation.astype(np.float64) * half_step / size).astype(_SCALE)

    def _public(self, size: int, length: int) -> np.float32:
        return self._factor(np.array([(self.norm or 0.0) * np.sqrt(size / length)]), size)[0]
