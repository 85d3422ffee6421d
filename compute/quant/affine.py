"""Linear quantisation: a number as a level, real = scale · (level - zero).

The arithmetic is that of ONNX's QuantizeLinear and DequantizeLinear (float32, halves to even, saturating), so that what
is computed here is what a runtime computes.
"""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.quant.settings import Form, check_bits
from coterie.errors import InputError

_SMALLEST = float(np.finfo(np.float32).smallest_normal)


@dataclass(frozen=True, kw_only=True, eq=False)
class Affine:
    """Levels low .. high of ``bits`` bits over the real numbers.

    scale: float32, () for a whole tensor or [channels] along ``axis``; zero: the level of the number 0, int32 of the
    same shape. Symmetric ones have the levels -(2^(bits-1) - 1) .. 2^(bits-1) - 1, as many on both sides, and zero 0;
    asymmetric ones 0 .. 2^bits - 1. (A runtime that quantises numbers below a symmetric range of 8 bits goes one level
    further, to -128.)
    """

    scale: NDArray
    zero: NDArray
    bits: int
    form: Form
    axis: int | None = None

    @property
    def low(self) -> int:
        return lowest(self.bits, self.form)

    @property
    def high(self) -> int:
        return highest(self.bits, self.form)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What levels are stored as: int8 for symmetric, uint8 for asymmetric ones."""
        return np.dtype("int8" if self.form == "symmetric" else "uint8")

    def quantise(self, x: NDArray) -> NDArray:
        """The levels of ``x``, in its shape. Numbers outside the range become the lowest or highest level."""
        scale, zero = (spread(part, x.ndim, self.axis) for part in (self.scale, self.zero))
        levels = np.rint(np.asarray(x, np.float32) / scale) + zero.astype(np.float32)
        return np.clip(levels, self.low, self.high).astype(self.dtype)

    def dequantise(self, levels: NDArray) -> NDArray:
        """The numbers that levels stand for, float32."""
        scale, zero = (spread(part, levels.ndim, self.axis) for part in (self.scale, self.zero))
        return (levels.astype(np.int32) - zero).astype(np.float32) * scale

    def round_trip(self, x: NDArray) -> NDArray:
        """``x`` after both ways. Inside the range the error is at most scale / 2 (and the rounding of float32)."""
        return self.dequantise(self.quantise(x))


def symmetric(x: NDArray, bits: int = 8, axis: int | None = None) -> Affine:
    """Levels on both sides of 0 for the numbers of ``x``: scale = max |x| / (2^(bits-1) - 1), zero = 0.

    axis: one scale for each index along this axis (per channel); None for one scale. Raises InputError for numbers that
    are not finite, an axis that is not there, and bits outside 2 .. 8.
    """
    low, high = extremes(x, axis)
    return affine(low, high, bits=bits, form="symmetric", axis=axis)


def asymmetric(x: NDArray, bits: int = 8, axis: int | None = None) -> Affine:
    """Levels over min(x, 0) .. max(x, 0): scale = (high - low) / (2^bits - 1), zero the level nearest to 0, so that 0
    is one of the numbers (zeros of padding and of ReLU stay exact). Otherwise as :func:`symmetric`.
    """
    low, high = extremes(x, axis)
    return affine(low, high, bits=bits, form="asymmetric", axis=axis)


def affine(low: NDArray, high: NDArray, *, bits: int = 8, form: Form, axis: int | None = None) -> Affine:
    """Levels for the range low .. high, each of () or [channels]; the range is widened to hold 0. One without any
    width has scale 1. Raises InputError for a range that is not finite or upside down.
    """
    check_bits(form, bits=bits)
    below = np.minimum(np.asarray(low, np.float32), np.float32(0))
    above = np.maximum(np.asarray(high, np.float32), np.float32(0))
    if not (np.isfinite(below).all() and np.isfinite(above).all() and (np.asarray(low) <= np.asarray(high)).all()):
        raise InputError(
            f"{form}: a range must be two finite numbers, the lower one first; got {low!r} .. {high!r}.",
            hint="Look for NaN and infinity in the weights, or in what the model computes from the calibration rows.",
        )
    if form == "symmetric":
        scale = _scale(np.maximum(-below, above), highest(bits, form))
        return Affine(scale=scale, zero=np.zeros(scale.shape, np.int32), bits=bits, form=form, axis=axis)
    with np.errstate(over="ignore"):
        scale = _scale(above - below, highest(bits, form))
    zero = np.clip(np.rint(-below / scale), 0, highest(bits, form)).astype(np.int32)
    return Affine(scale=scale, zero=zero, bits=bits, form=form, axis=axis)


def lowest(bits: int, form: Form) -> int:
    """The lowest level."""
    return -highest(bits, form) if form == "symmetric" else 0


def highest(bits: int, form: Form) -> int:
    """The highest level."""
    return (1 << (bits - 1)) - 1 if form == "symmetric" else (1 << bits) - 1


def spread(part: NDArray, rank: int, axis: int | None) -> NDArray:
    """A value for each channel in a shape that broadcasts against a tensor of this rank."""
    if axis is None or not part.ndim:
        return part
    return part.reshape([-1 if place == axis % rank else 1 for place in range(rank)])


def extremes(x: NDArray, axis: int | None) -> tuple[NDArray, NDArray]:
    """Smallest and largest number, float32 of () or [channels]. Raises InputError for what has none."""
    array = cast(object, x)
    if not isinstance(array, np.ndarray) or x.dtype.kind != "f" or not x.size:
        raise InputError(
            "Only NumPy arrays of floats with at least one element can be quantised, got "
            f"{x.dtype.name + str(list(x.shape)) if isinstance(array, np.ndarray) else type(array).__name__}."
        )
    if axis is not None and not -x.ndim <= axis < x.ndim:
        raise InputError(f"There is no axis {axis} in an array of shape {list(x.shape)}.")
    others = tuple(place for place in range(x.ndim) if axis is None or place != axis % x.ndim)
    low, high = x.min(axis=others), x.max(axis=others)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise InputError("NaN and infinity cannot be quantised.", hint="Find where training went wrong.")
    return np.asarray(low, np.float32), np.asarray(high, np.float32)


def _scale(width: NDArray, levels: int) -> NDArray:
    scale = (width / np.float32(levels)).astype(np.float32)
    # A width of nothing, or so small that its levels would have no normal float32 between them.
    return np.where(scale >= _SMALLEST, scale, np.float32(1)).astype(np.float32)
