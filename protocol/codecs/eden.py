"""``eden:b``, ``eden:b:biased`` and ``drive``: rotated blocks, quantised with the best levels for normal numbers.

After the rotation (`spread`, then `rotate`; see rotation; its seed is the update's own) a block's elements are nearly
normal, whatever the vector was. Each becomes the nearest of 2**b centroids q. With y = Mx the block's elements turned,
‖y‖² = 64 n ‖x‖², a block of size n then decodes to m · Mᵀq with

    unbiased   m = ‖x‖² / ⟨y, q⟩             mean squared error D / (1 - D) · ‖x‖², D the quantiser's distortion
    biased     m = ⟨y, q⟩ / (64 n ‖q‖²)      the least error, D · ‖x‖², but x' is too short: use it with ``+ef``

Payload of a block: one scale (float32), then b bits for each element (see packing): the index of the centroid's
magnitude, and above it 1 for negative. Centroids are rounded to whole multiples of 2**-9, so the rotation back adds
whole numbers below 2**24, and spreading back below 2**30, in float64: exact, in any order. A decoded element is that
sum times the scale, one product in float64, rounded to float32.

E[x'] = x holds for rotations uniform over all. This one comes close: what stays in the mean of many updates is about
10**-4 of ‖x‖² or less at one bit, also on heavy tails (docs/codecs.md has figures).

A block whose norm is below 10**-22 or so counts as zeros, since its squares vanish in float32.

Mean squared errors at 1, 2, 3, 4 bits: 0.571, 0.132, 0.0360, 0.0096 of ‖x‖²; at 7 and 8: 0.00016, 0.00004. ``drive`` is
one bit, biased.
Vargaftik et al., DRIVE (arXiv:2105.08339) and EDEN (arXiv:2108.08842).
"""

import math
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
    CodecState,
    Keys,
    Memoryless,
    Payload,
    Shape,
    as_float32,
    check_form,
    check_range,
    check_vector,
    read_payload,
)
from coterie.protocol.codecs.packing import fold, pack, packed_size, unfold, unpack
from coterie.protocol.codecs.rotation import (
    Space,
    Span,
    blocks,
    cut,
    rotate,
    rotate_back,
    signs,
    spans,
    spread,
    spread_back,
    spreading,
)
from coterie.protocol.codecs.stochastic import check_units

FINENESS = 512
"""Centroids are whole multiples of one part in so many."""
LONGER = 64
"""What the square of a spread element's length is multiplied by."""
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

    def encode(self, vector: npt.NDArray[Any], keys: Keys, shape: Shape, state: CodecState) -> tuple[bytes, CodecState]:
        """See Codec.encode. Refuses magnitudes beyond 1e15 (``out_of_range``)."""
        check_form(vector, shape)
        plain = vector.dtype == np.float32 and vector.flags.c_contiguous
        values = vector if plain else as_float32(vector, shape)
        flips, marks, space = signs(keys.own), spreading(keys.own), Space.of(values.size)
        out = np.empty(self.min_bytes(shape), np.uint8)
        for span in spans(values.size):
            block = cut(values, span)
            with np.errstate(over="ignore", invalid="ignore"):
                squares = np.vecdot(block, block)
            if not bool((squares <= LARGEST**2).all()):  # also where there is NaN
                check_vector(vector, shape)
                check_magnitudes(values, self.name)
            norms = np.sqrt(squares)
            turned = rotate(spread(block, marks, space), flips, space)
            packed = self._quantise(turned, norms, space)
            levels = _levels(packed, span, self.bits, space.third, space.other(turned))
            put(out, self._scales(norms, turned, levels), packed, span, self.bits)
        return out.tobytes(), NO_STATE

    def decode(self, payload: Payload, keys: Keys, shape: Shape, start: int, stop: int) -> npt.NDArray[Any]:
        """See Codec.decode. Refuses scales that are negative or not finite."""
        check_range(shape.length, start, stop)
        flips, marks, space = signs(keys.own), spreading(keys.own).astype(np.float64), Space.of(shape.length)
        vector = np.empty(stop - start, np.float32)
        for span in spans(shape.length):
            low, high = max(span.start, start), min(span.start + span.count * span.size, stop)
            if low >= high:
                continue
            scales, turned = self._blocks(payload, span, flips, space)
            whole = spread_back(turned, marks, scales).reshape(-1)
            vector[low - start : high - start] = whole[low - span.start : high - span.start]
        return vector

    def _scales(
        self, norms: npt.NDArray[np.float32], turned: npt.NDArray[np.float32], levels: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """The last factor of each block, whose elements turned have the norm 8 ‖x‖ √n: of zeros, 0, and of numbers so
        small that their squares vanish, whose codes mean nothing.
        """
        agreement = np.where(norms > 0, np.vecdot(turned, levels), np.float32(0))
        if self.biased:
            return agreement / np.vecdot(levels, levels) / np.float32(LONGER * turned.shape[1])
        return (norms * norms / np.where(agreement > 0, agreement, 1)).astype(np.float32)

    def _blocks(
        self, payload: Payload, span: Span, flips: npt.NDArray[np.float32], space: Space
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        scales, packed = split(payload, span, self.bits, scaled=True)
        check_units(scales, span.first)
        levels = _levels(packed, span, self.bits, space.second, space.third)
        return scales, rotate_back(levels, flips, space.first)

    def _quantise(
        self, turned: npt.NDArray[np.float32], norms: npt.NDArray[np.float32], space: Space
    ) -> npt.NDArray[np.uint8]:
        """The codes, folded where several share a byte: each element's cell on an even grid of 256 (65 536 at 3 and
        from 5 bits on) says which centroid is nearest, but for the few in the cell that a threshold crosses: at most
        0.3 % more error up to 6 bits.
        """
        fine = self.bits not in _RUNS
        half = _HALF[fine]
        reach = half / np.float32(_REACH[self.bits]) / np.float32(math.sqrt(LONGER))
        with np.errstate(divide="ignore", over="ignore"):
            factors = np.where(norms > 0, reach / norms, np.float32(0))
        room = space.other(turned)[: turned.size]
        scaled = np.multiply(turned, factors[:, None], out=room.reshape(turned.shape))
        scaled += np.float32(half)
        cells = space.third.view(np.uint16 if fine else np.uint8)[: turned.size]
        np.clip(room, 0, 2 * half - 1, out=cells, casting="unsafe")
        if fine:
            return np.take(_cells(self.bits), cells)
        return fold(_look_up(_pairs(self.bits), cells.view("<u2"), room), 2 * self.bits)


def eden(bits: int, *, biased: bool = False) -> Eden:
    """``eden:b`` for b from 1 to 8."""
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
_REACH: Mapping[int, float] = MappingProxyType({1: 2.0, 2: 2.0, 3: 2.0, 4: 2.6, 5: 3.5, 6: 4.0, 7: 4.4, 8: 4.8})
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
    """Two cells, the first in the lower byte → two codes, the first in the lower bits."""
    codes = _cells(bits)
    return (codes[None, :] | (codes[:, None] << bits)).reshape(-1)


def _look_up(
    table: npt.NDArray[Any], numbers: npt.NDArray[Any], room: npt.NDArray[np.float32], out: Any = None
) -> npt.NDArray[Any]:
    """The table's entries for numbers that it all has. What NumPy makes of them to look them up takes its place in
    `room`, of eight bytes for each: to take memory for it costs more than to look.
    """
    places = room.view(np.intp)[: numbers.size]
    np.copyto(places, numbers)
    return np.take(table, places, out=out, mode="clip")


@cache
def _bytes(bits: int) -> npt.NDArray[Any]:
    """A byte of codes → their centroids, side by side."""
    if bits not in _RUNS:
        return np.resize(_table(bits), 256)
    return _table(bits)[unfold(np.arange(256, dtype=np.uint8), bits)].reshape(256, 8 // bits)


def _levels(
    packed: npt.NDArray[np.uint8], span: Span, bits: int, out: npt.NDArray[np.float32], room: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """The centroids of a span's codes, [count, size], in `out`; `room` is used on the way."""
    levels, table = out[: span.count * span.size], _bytes(bits)
    if bits == 4:  # one element of eight bytes is found faster than a row of two
        _look_up(table.view(np.uint64).reshape(-1), packed.reshape(-1), room, levels.view(np.uint64))
    else:
        np.take(table, packed.reshape(-1), axis=0, out=levels.reshape(-1, *table.shape[1:]), mode="clip")
    return levels.reshape(span.count, span.size)


def put(
    out: npt.NDArray[np.uint8],
    scales: npt.NDArray[np.float32] | None,
    packed: npt.NDArray[np.integer[Any]],
    span: Span,
    bits: int,
) -> None:
    """Write a span's blocks where they belong in a payload: of each its scale, if there are scales, and its codes,
    folded where several share a byte.
    """
    head, size = 0 if scales is None else _SCALE.itemsize, packed_size(span.size, bits)
    at = head * span.first + span.start * bits // 8
    rows = out[at : at + span.count * (head + size)].reshape(span.count, head + size)
    if scales is not None:
        rows[:, :head] = scales.astype(_SCALE).view(np.uint8).reshape(span.count, head)
    if bits in _RUNS:
        rows[:, head:] = packed.reshape(span.count, size)
    else:
        for row, block in zip(rows, packed.reshape(span.count, span.size), strict=True):
            row[head:] = np.frombuffer(pack(block, bits), np.uint8)


def split(payload: Payload, span: Span, bits: int, *, scaled: bool) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any]]:
    """The inverse of `put` for a span; no scales unless `scaled`. Every block is a multiple of 64 elements."""
    head, size = _SCALE.itemsize if scaled else 0, packed_size(span.size, bits)
    at = head * span.first + span.start * bits // 8
    data = read_payload(payload, at, at + span.count * (head + size))
    rows = np.frombuffer(data, np.uint8).reshape(span.count, head + size)
    scales = np.ascontiguousarray(rows[:, :head]).view(_SCALE).reshape(-1) if scaled else np.empty(0, _SCALE)
    body = np.ascontiguousarray(rows[:, head:])
    if bits in _RUNS:
        return scales, body
    kind = np.uint8 if bits <= 8 else np.uint16
    return scales, np.stack([unpack(row.tobytes(), span.size, bits).astype(kind) for row in body])
