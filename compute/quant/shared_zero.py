"""Asymmetric levels of several channels that share one zero: what integer kernels of convolutions take."""

from dataclasses import replace

import numpy as np

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.quant.affine import Affine, affine, highest

_SMALLEST = float(np.finfo(np.float32).smallest_normal)


def shared_zero(low: Array, high: Array, top: int) -> tuple[Array, Array]:
    """Scales and zeros, both in the shape of ``low``, of channels with the ranges low .. high (low ≤ 0 ≤ high) over the
    levels 0 .. top. All zeros are equal. float32, eager or traced: a file has the bits that training had.

    ONNX Runtime up to 1.24 refuses a convolution whose channels have different zeros, so one must do for all. Write a
    and b for how far a channel reaches below and above 0, r = a / (a + b), and f = (a + b) / top for its scale if its
    zero were its own. A zero at the share ζ of the levels leaves ζ · top of them for a and (1 - ζ) · top for b, so the
    scale has to be max(r / ζ, (1 - r) / (1 - ζ)) · f. Over all channels the first term is worst at the largest r, R,
    the second at the largest 1 - r, L; one falls with ζ and the other rises, so the channel that loses most loses least
    where they meet, at ζ = R / (R + L). There no scale is above (R + L) · f, and R + L ≤ 2.

    Guarantees: the zero is that share, rounded; every number of a channel lies within half a level of the levels, so it
    comes back within scale / 2; f ≤ scale ≤ (R + L) · f, which is f for channels of one r and never costs more than one
    bit (rounding the zero takes nothing of that, because half a level beyond either end is used); R and L are taken
    over channels that have a width, one without any has scale 1.
    """
    below, above, most = xp.negative(low), high, float(top)
    finest = below / most + above / most
    wide, one = xp.greater_equal(finest, _SMALLEST), xp.ones_like(finest)
    share = xp.where(wide, finest, one)
    # The largest r and the largest 1 - r; their sum is 1 at least, and 0 where no channel has a width.
    under, over = (xp.max(xp.where(wide, end / most / share, one * 0.0)) for end in (below, above))
    zero = xp.round(under / xp.maximum(under + over, 1.0) * most)
    scale = xp.maximum(finest, xp.maximum(below / (zero + 0.5), above / (most - zero + 0.5)))
    return xp.where(wide, scale, one), zero + one * 0.0


def affine_of_channels(low: NDArray, high: NDArray, *, bits: int = 8, axis: int) -> Affine:
    """Asymmetric levels for the ranges low .. high [channels] along ``axis``, widened to hold 0, with one zero for all:
    see :func:`shared_zero`. Raises as `quant.affine.affine`.
    """
    own = affine(low, high, bits=bits, form="asymmetric", axis=axis)
    ends = np.minimum(np.asarray(low, np.float32), 0), np.maximum(np.asarray(high, np.float32), 0)
    scale, zero = (part.numpy() for part in shared_zero(Array(ends[0]), Array(ends[1]), highest(bits, own.form)))
    return replace(own, scale=scale, zero=zero.astype(np.int32))
