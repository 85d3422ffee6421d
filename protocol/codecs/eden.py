"""``eden:b``, ``eden:b:biased`` and ``drive``: rotated blocks, quantised with the best levels for normal numbers.

After the rotation (see rotation; its seed is the update's own) a block's elements are nearly normal, whatever the
vector was. Each becomes the nearest of 2**b centroids q. A block of size n then decodes to (m / n) · Rᵀq with

    unbiased   m = ‖Rx‖² / ⟨Rx, q⟩     E[x'] = x: mean squared error D / (1 - D) · ‖x‖², D the quantiser's distortion
    biased     m = ⟨Rx, q⟩ / ‖q‖²      the least error, D · ‖x‖², but x' is too short: use it with ``+ef``

Payload of a block: one scale (float32), then b bits for each element (see packing): the index of the centroid's
magnitude, and above it 1 for negative. Centroids are rounded to whole multiples of 2**-9, so the rotation back adds
whole numbers below 2**24: exact, in any order. A decoded element is that sum times the scale, one product.

Mean squared errors at 1, 2, 3, 4 bits: 0.571, 0.132, 0.0360, 0.0096 of ‖x‖². ``drive`` is one bit, biased.
Vargaftik et al., DRIVE (arXiv:2105.08339) and EDEN (arXiv:2108.08842).
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.protocol.codecs.centroids import CENTROIDS
from coterie.protocol.codecs.codec import (
    NO_STATE,
    Keys,
    Payload,
    Shape,
    State,
    as_float32,
    check_range,
    read_payload,
)
from coterie.protocol.codecs.packing import fold, pack, packed_size, unfold, unpack
from coterie.protocol.codecs.rotation import Span, blocks, cut, rotate, rotate_back, signs, spans
from coterie.protocol.codecs.stochastic import check_units

FINENESS = 512
"""Centroids are whole multiples of one part in so many."""
LARGEST = 1e15
"""Squares of larger magnitudes, summed over a block, would leave float32."""

_SCALE = np.dtype("<f4")


@dataclass(frozen=True, kw_only=True)
class Eden:
    """See the module's docstring."""

    name: str
    bits: int
    biased: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32."""
        return np.dtype("<f4")

    @property
    def stateful(self) -> bool:
        """No."""
        return False

    def min_bytes(self, shape: Shape) -> int:
        """Exactly four bytes for each block and `bits` for each element of the blocks."""
        count, elements = blocks(shape.length)
        return _SCALE.itemsize * count + elements * self.bits // 8

    def max_bytes(self, shape: Shape) -> int:
        """Exactly four bytes for each block and `bits` for each element of the blocks."""
        return self.min_bytes(shape)

    def encode(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape, state: State) -> tuple[bytes, State]:
        """See Codec.encode. Refuses magnitudes beyond 1e15 (``out_of_range``)."""
        values = as_float32(vector, shape)
        check_magnitudes(values, self.name)
        flips = signs(keys.own)
        parts: list[bytes] = []
        for span in spans(values.size):
            block = cut(values, span)
            norms = np.sqrt(np.einsum("ij,ij->i", block, block))
            turned = rotate(block, flips)
            with np.errstate(divide="ignore"):
                turned *= np.where(norms > 0, 1 / norms, 0)[:, None].astype(np.float32)
            codes = self._quantise(turned)
            levels = _table(self.bits)[codes]
            agreement = np.einsum("ij,ij->i", turned, levels)
            if self.biased:
                scales = norms * agreement / np.einsum("ij,ij->i", levels, levels) / np.float32(span.size)
            else:
                scales = np.where(norms > 0, norms / np.where(norms > 0, agreement, 1), 0)
            parts.append(join(scales, codes, self.bits))
        return b"".join(parts), NO_STATE

    def decode(self, payload: Payload, keys: Keys, shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
        """See Codec.decode. Refuses scales that are negative or not finite."""
        check_range(shape.length, start, stop)
        flips = signs(keys.own)
        vector = np.empty(stop - start, np.float32)
        for span in spans(shape.length):
            low, high = max(span.start, start), min(span.start + span.count * span.size, stop)
            if low >= high:
                continue
            whole = self._blocks(payload, span, flips).reshape(-1)
            vector[low - start : high - start] = whole[low - span.start : high - span.start]
        return vector

    def _blocks(self, payload: Payload, span: Span, flips: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        scales, codes = split(payload, span, self.bits, scaled=True)
        check_units(scales, span.first)
        with np.errstate(over="ignore", under="ignore"):
            return rotate_back(_table(self.bits)[codes], flips) * scales[:, None]

    def _quantise(self, turned: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """The codes of normal numbers: how many thresholds the magnitude passes, and the sign above."""
        magnitudes = np.abs(turned)
        codes = np.signbit(turned).astype(np.uint8) << np.uint8(self.bits - 1)
        for threshold in _thresholds(self.bits):
            codes += (magnitudes > threshold).view(np.uint8)
        return codes


def eden(bits: int, *, biased: bool = False) -> Eden:
    """``eden:b`` for b from 1 to 6."""
    if bits not in CENTROIDS:
        raise ValueError(f"eden takes {min(CENTROIDS)} to {max(CENTROIDS)} bits")
    return Eden(name=f"eden:{bits}:biased" if biased else f"eden:{bits}", bits=bits, biased=biased)


DRIVE = Eden(name="drive", bits=1, biased=True)


def check_magnitudes(values: npt.NDArray[np.float32], name: str) -> None:
    """Refuse magnitudes whose squares leave float32."""
    largest = max(float(values.max(initial=0)), -float(values.min(initial=0)))
    if largest > LARGEST:
        raise errors.UpdateRefused(
            f"A magnitude of {largest:g} is beyond what {name} can rotate ({LARGEST:g}).",
            hint="Training diverged: lower the learning rate or clip the delta.",
            code="out_of_range",
        )


@cache
def _table(bits: int) -> npt.NDArray[np.float32]:
    """Code → centroid, a whole number of 512ths."""
    half = np.rint(np.array(CENTROIDS[bits]) * FINENESS).astype(np.float32)
    return np.concatenate([half, -half])


@cache
def _thresholds(bits: int) -> tuple[np.float32, ...]:
    half = CENTROIDS[bits]
    return tuple(np.float32((a + b) / 2) for a, b in zip(half, half[1:], strict=False))


def join(scales: npt.NDArray[np.floating[Any]] | None, codes: npt.NDArray[np.uint8], bits: int) -> bytes:
    """The bytes of blocks [count, size]: of each its scale, if there are scales, and its codes."""
    count, size = codes.shape
    head = 0 if scales is None else _SCALE.itemsize
    out = np.empty((count, head + size * bits // 8), np.uint8)
    if scales is not None:
        out[:, :head] = scales.astype(_SCALE).view(np.uint8).reshape(count, head)
    if bits in (1, 2, 4):
        out[:, head:] = fold(codes, bits)
    else:
        for row, block in zip(out, codes, strict=True):
            row[head:] = np.frombuffer(pack(block, bits), np.uint8)
    return out.tobytes()


def split(
    payload: Payload, span: Span, bits: int, *, scaled: bool
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """The inverse of `join` for a span; no scales unless `scaled`. Every block is a multiple of 64 elements."""
    head, packed = _SCALE.itemsize if scaled else 0, packed_size(span.size, bits)
    at = head * span.first + span.start * bits // 8
    data = read_payload(payload, at, at + span.count * (head + packed))
    rows = np.frombuffer(data, np.uint8).reshape(span.count, head + packed)
    scales = np.ascontiguousarray(rows[:, :head]).view(_SCALE).reshape(-1) if scaled else np.empty(0, _SCALE)
    body = np.ascontiguousarray(rows[:, head:])
    if bits in (1, 2, 4):
        return scales, unfold(body, bits)
    return scales, np.stack([unpack(row.tobytes(), span.size, bits).astype(np.uint8) for row in body])
