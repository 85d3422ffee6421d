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

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.protocol.codecs.centroids import CENTROIDS
from coterie.protocol.codecs.codec import (
    NO_STATE,
    Keys,
    Memoryless,
    Payload,
    Shape,
    State,
    as_float32,
    check_form,
    check_range,
    check_vector,
    read_payload,
)
from coterie.protocol.codecs.packing import fold, pack, packed_size, unfold, unpack
from coterie.protocol.codecs.rotation import Space, Span, blocks, cut, rotate, rotate_back, signs, spans
from coterie.protocol.codecs.stochastic import check_units

FINENESS = 512
"""Centroids are whole multiples of one part in so many."""
LARGEST = 1e15
"""Squares of larger magnitudes, summed over a block, would leave float32."""

_SCALE = np.dtype("<f4")


@dataclass(frozen=True, kw_only=True)
class Eden(Memoryless):
    """See the module's docstring."""

    name: str
    bits: int
    biased: bool

    def min_bytes(self, shape: Shape) -> int:
        """Exactly four bytes for each block and `bits` for each element of the blocks."""
        count, elements = blocks(shape.length)
        return _SCALE.itemsize * count + elements * self.bits // 8

    def max_bytes(self, shape: Shape) -> int:
        """Exactly four bytes for each block and `bits` for each element of the blocks."""
        return self.min_bytes(shape)

    def encode(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape, state: State) -> tuple[bytes, State]:
        """See Codec.encode. Refuses magnitudes beyond 1e15 (``out_of_range``)."""
        check_form(vector, shape)
        plain = vector.dtype == np.float32 and vector.flags.c_contiguous
        values = vector if plain else as_float32(vector, shape)
        flips, space = signs(keys.own), Space.of(values.size)
        parts: list[bytes] = []
        for span in spans(values.size):
            block = cut(values, span)
            squares = np.vecdot(block, block)
            if not bool((squares <= LARGEST**2).all()):  # also where there is NaN
                check_vector(vector, shape)
                check_magnitudes(values, self.name)
            norms = np.sqrt(squares)
            turned = rotate(block, flips, space)
            codes = self._quantise(turned, norms, space)
            packed = fold(codes, self.bits) if self.bits in _RUNS else codes
            levels = _levels(packed, span, self.bits)
            parts.append(join(self._scales(norms, turned, levels), packed, span, self.bits))
        return b"".join(parts), NO_STATE

    def decode(self, payload: Payload, keys: Keys, shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
        """See Codec.decode. Refuses scales that are negative or not finite."""
        check_range(shape.length, start, stop)
        flips, space = signs(keys.own), Space.of(shape.length)
        vector = np.empty(stop - start, np.float32)
        for span in spans(shape.length):
            low, high = max(span.start, start), min(span.start + span.count * span.size, stop)
            if low >= high:
                continue
            whole = self._blocks(payload, span, flips, space).reshape(-1)
            vector[low - start : high - start] = whole[low - span.start : high - span.start]
        return vector

    def _scales(
        self, norms: npt.NDArray[np.float32], turned: npt.NDArray[np.float32], levels: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """The last factor of each block, whose elements turned have the norm ‖x‖ √n: of zeros, 0."""
        agreement = np.vecdot(turned, levels)
        if self.biased:
            return agreement / np.vecdot(levels, levels) / np.float32(turned.shape[1])
        return (norms * norms / np.where(agreement > 0, agreement, 1)).astype(np.float32)

    def _blocks(
        self, payload: Payload, span: Span, flips: npt.NDArray[np.float32], space: Space
    ) -> npt.NDArray[np.float32]:
        scales, packed = split(payload, span, self.bits, scaled=True)
        check_units(scales, span.first)
        with np.errstate(over="ignore", under="ignore"):
            whole = rotate_back(_levels(packed, span, self.bits), flips, space.first)
            whole *= scales[:, None]
        return whole

    def _quantise(
        self, turned: npt.NDArray[np.float32], norms: npt.NDArray[np.float32], space: Space
    ) -> npt.NDArray[np.uint8]:
        """The codes: each element's cell on an even grid of 256 (65 536 at 3, 5 and 6 bits) says which centroid is
        nearest, but for the few in the cell that a threshold crosses: at most 0.3 % more error.
        """
        fine = self.bits not in _RUNS
        half = _HALF[fine]
        with np.errstate(divide="ignore", over="ignore"):
            factors = np.where(norms > 0, half / np.float32(_REACH[self.bits]) / norms, np.float32(0))
        # The turned elements lie in one of the two rooms; the cells take the other.
        room = space.second if np.may_share_memory(turned, space.first) else space.first
        cells = np.multiply(turned, factors[:, None], out=room[: turned.size].reshape(turned.shape))
        cells += np.float32(half)
        np.clip(cells, 0, 2 * half - 1, out=cells)
        if fine:
            return np.take(_cells(self.bits), cells.astype(np.uint16))
        return np.take(_pairs(self.bits), cells.astype(np.uint8).view("<u2")).view(np.uint8)


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


_RUNS = (1, 2, 4)
"""Bits of codes of which several share a byte. The others take one byte each on the way."""
_HALF: Mapping[bool, int] = MappingProxyType({False: 128, True: 32768})
_REACH: Mapping[int, float] = MappingProxyType({1: 2.0, 2: 2.0, 3: 2.0, 4: 2.6, 5: 3.5, 6: 4.0})
"""How far the grid of cells goes, in deviations: beyond the last threshold, by bits."""


@cache
def _table(bits: int) -> npt.NDArray[np.float32]:
    """Code → centroid, a whole number of 512ths."""
    half = np.rint(np.array(CENTROIDS[bits]) * FINENESS).astype(np.float32)
    return np.concatenate([half, -half])


@cache
def _cells(bits: int) -> npt.NDArray[np.uint8]:
    """Cell → the code of the centroid nearest to its middle."""
    count = 2 * _HALF[bits not in _RUNS]
    middles = (np.arange(count) + 0.5 - count // 2) * _REACH[bits] / (count // 2)
    half = np.array(CENTROIDS[bits])
    nearest = np.searchsorted((half[1:] + half[:-1]) / 2, np.abs(middles))
    return (nearest | ((middles < 0) << (bits - 1))).astype(np.uint8)


@cache
def _pairs(bits: int) -> npt.NDArray[Any]:
    """Two cells, the first in the lower byte → two codes."""
    codes = _cells(bits).astype("<u2")
    return (codes[None, :] | (codes[:, None] << 8)).reshape(-1)


@cache
def _bytes(bits: int) -> npt.NDArray[Any]:
    """A byte of codes → their centroids, side by side."""
    if bits not in _RUNS:
        return np.resize(_table(bits), 256)
    return _table(bits)[unfold(np.arange(256, dtype=np.uint8), bits)].reshape(256, 8 // bits)


def _levels(packed: npt.NDArray[np.uint8], span: Span, bits: int) -> npt.NDArray[np.float32]:
    """The centroids of a span's codes, [count, size]."""
    table = _bytes(bits)
    if bits == 4:  # one element of eight bytes is found faster than a row of two
        return np.take(table.view(np.uint64).reshape(-1), packed).view(np.float32).reshape(span.count, span.size)
    return np.take(table, packed, axis=0).reshape(span.count, span.size)


def join(scales: npt.NDArray[np.float32] | None, packed: npt.NDArray[np.uint8], span: Span, bits: int) -> bytes:
    """The bytes of a span's blocks: of each its scale, if there are scales, and its codes, folded where several share a
    byte.
    """
    head = 0 if scales is None else _SCALE.itemsize
    out = np.empty((span.count, head + span.size * bits // 8), np.uint8)
    if scales is not None:
        out[:, :head] = scales.astype(_SCALE).view(np.uint8).reshape(span.count, head)
    if bits in _RUNS:
        out[:, head:] = packed.reshape(span.count, -1)
    else:
        for row, block in zip(out, packed.reshape(span.count, span.size), strict=True):
            row[head:] = np.frombuffer(pack(block, bits), np.uint8)
    return out.tobytes()


def split(
    payload: Payload, span: Span, bits: int, *, scaled: bool
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """The inverse of `join` for a span; no scales unless `scaled`. Every block is a multiple of 64 elements."""
    head, size = _SCALE.itemsize if scaled else 0, packed_size(span.size, bits)
    at = head * span.first + span.start * bits // 8
    data = read_payload(payload, at, at + span.count * (head + size))
    rows = np.frombuffer(data, np.uint8).reshape(span.count, head + size)
    scales = np.ascontiguousarray(rows[:, :head]).view(_SCALE).reshape(-1) if scaled else np.empty(0, _SCALE)
    body = np.ascontiguousarray(rows[:, head:])
    if bits in _RUNS:
        return scales, body
    return scales, np.stack([unpack(row.tobytes(), span.size, bits).astype(np.uint8) for row in body])
