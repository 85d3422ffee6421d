"""Differential privacy without a trusted server: every client adds a share of the noise, secure aggregation adds them.

Kairouz, Liu and Steinke 2021 (arXiv:2102.06387). What a share is drawn from is a row of `noise.distributions`, which
says too what a sum of shares costs. A client

1. shortens its vector to the norm `clip`; anything not finite makes it zeros (`clipping.clip`);
2. spreads it over its coordinates by a public rotation (`spread`) and multiplies by `scale`: steps of the grid;
3. rounds each coordinate up or down at random, again and again until the squares sum to at most
   `DistributedNoise.square` (`noise.conditional_rounding`): checked in whole numbers, so that this, and no float before
   it, is the sensitivity;
4. adds a share of noise of `variance` to each coordinate and reduces modulo 2**bits.

The sum modulo 2**bits is lifted to -2**(bits-1) … 2**(bits-1) - 1, divided by the scale and rotated back. A coordinate
that left that range comes back at its other end: that harms the model, never privacy, since what is revealed is
computed from the noised sum. `choose` makes it rare.

The guarantee counts the shares of `contributors` clients. More shares only add noise. It is kept against everyone who
sees the sum, as long as so many survivors are honest: a share whose key somebody knows hides nothing from him.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.privacy.dp import spread
from coterie.privacy.dp.clipping import clip as clip_vector
from coterie.privacy.dp.events import Concentrated
from coterie.privacy.dp.noise.conditional_rounding import largest_square, round_within
from coterie.privacy.dp.noise.distribution import Exposure
from coterie.privacy.dp.noise.distributions import DISTRIBUTIONS
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.protocol.mechanisms import DistributedMechanism
from coterie.protocol.noise import NoiseTerms

LEAST_VARIANCE = 4.0
"""Of a share, in squared steps. Below it a sum of discrete Gaussians is too far from one."""
# exp(20) + 1 < 2**30: see `event`.
_FAILURES = 2.0**30


@dataclass(frozen=True, kw_only=True)
class DistributedNoise:
    """How the clients of a round encode and noise their vectors of `length` coordinates.

    mechanism: the distribution of a share.
    clip: the norm to which vectors are shortened.
    scale: steps of the grid in a unit of the vector.
    variance: of one client's share, in squared steps.
    contributors: the shares that the guarantee counts on.
    bits: the ring has 2**bits numbers, up to 2**32.
    """

    mechanism: DistributedMechanism
    clip: float
    scale: float
    variance: float
    contributors: int
    bits: int
    length: int

    def __post_init__(self) -> None:
        for name in ("clip", "scale", "variance"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise _invalid(f"{name} is {value:g}, not a number above 0")
        if self.contributors < 1 or self.length < 1:
            raise _invalid("contributors and length are at least 1")
        if not 2 <= self.bits <= 32:
            raise _invalid(f"a ring has 2 to 32 bits, not {self.bits}")
        if self.clip * self.scale > 2.0**30:
            raise _invalid(f"clip times scale is {self.clip * self.scale:g}, beyond 2**30")
        most = DISTRIBUTIONS[self.mechanism].largest_variance
        if not LEAST_VARIANCE <= self.variance <= most:
            raise _invalid(f"a share's variance lies in {LEAST_VARIANCE:g} … {most:g} steps², not at {self.variance:g}")

    @staticmethod
    def of(noise: NoiseTerms, bits: int, length: int) -> "DistributedNoise":
        """As a signed task says it. Raises errors.ArgumentValueError (``noise_terms``) for impossible terms."""
        return DistributedNoise(
            mechanism=noise.mechanism,
            clip=noise.clip,
            scale=noise.scale,
            variance=noise.variance,
            contributors=noise.contributors,
            bits=bits,
            length=length,
        )

    @property
    def message(self) -> NoiseTerms:
        """What a signed task says of them; bits and length are its section's."""
        return NoiseTerms(
            mechanism=self.mechanism,
            clip=self.clip,
            scale=self.scale,
            variance=self.variance,
            contributors=self.contributors,
        )

    @property
    def padded(self) -> int:
        """How many numbers a client sends."""
        return spread.padded(self.length)

    @property
    def square(self) -> int:
        """The squared sensitivity: no client's whole numbers, before noise, have a larger sum of squares."""
        return largest_square(self.clip * self.scale, self.padded)

    @property
    def inflation(self) -> float:
        """How much longer a vector may be after rounding than `clip`, as a factor: 1.01 costs 1 % more noise."""
        return math.sqrt(self.square) / (self.clip * self.scale)


@dataclass(frozen=True)
class NoisedVector:
    """A client's vector, encoded and noised.

    numbers: uint32[padded], below 2**bits, noised: may be revealed in a sum.
    shortened: whether the vector was longer than `clip` (see `clipping.ClippedVector`); as private as the vector.
    """

    numbers: npt.NDArray[np.uint32]
    shortened: bool


def encode(vector: npt.NDArray[Any], terms: DistributedNoise, shared: bytes, source: NoiseSource) -> NoisedVector:
    """What one client adds to the masked sum.

    shared: the public seed of the rotation, 32 bytes, the same for all.
    source: a key of the client's own, fresh for every vector: whoever knows it can take the noise off.

    Raises errors.ArgumentValueError (``noise_terms``) for a vector of another length.
    """
    if vector.size != terms.length:
        raise _invalid(f"the vector has {vector.size} coordinates, the terms are for {terms.length}")
    held = clip_vector(vector.reshape(-1), terms.clip)
    whole = round_within(spread.spread(held.vector, shared) * terms.scale, terms.square, source)
    whole += share(terms.mechanism, terms.padded, terms.variance, source)
    return NoisedVector((whole & ((1 << terms.bits) - 1)).astype(np.uint32), held.shortened)


def decode(total: npt.NDArray[np.integer[Any]], terms: DistributedNoise, shared: bytes) -> npt.NDArray[np.float64]:
    """The noised sum of the clipped vectors, float64[length], from the sum of the numbers modulo 2**bits. Unbiased but
    for the rounding's condition. Divide by a PUBLIC number of clients, not by the one that was counted.

    Raises errors.ArgumentValueError (``noise_terms``) for a sum of another length.
    """
    if total.size != terms.padded:
        raise _invalid(f"the sum has {total.size} numbers, the terms are for {terms.padded}")
    ring = 1 << terms.bits
    whole = total.astype(np.int64) & (ring - 1)
    lifted = np.where(whole >= ring // 2, whole - ring, whole).astype(np.float64)
    return spread.gather(lifted, terms.length, shared) / terms.scale


def share(mechanism: DistributedMechanism, count: int, variance: float, source: NoiseSource) -> npt.NDArray[np.int64]:
    """Whole-number noise for `count` coordinates of the ring: one client's share.

    variance: in squared steps.
    """
    return DISTRIBUTIONS[mechanism].draw(count, Fraction(variance), source)


def event(terms: DistributedNoise) -> Concentrated:
    """What one sum costs when at least `contributors` honest clients' shares are in it: for any two inputs of which
    one has a client's vector where the other has zeros, and for all who see the sum.

    How much that is says the mechanism's row, for S = `square` and d = `padded`.
    delta charges the samplers' distance from exact: (1 + e**ε) times that of all draws, for ε up to 20.
    """
    return cost_of_sum(terms.mechanism, terms.square, terms.padded, terms.variance, terms.contributors)


def cost_of_sum(
    mechanism: DistributedMechanism, square: int, dimension: int, variance: float, contributors: int
) -> Concentrated:
    """As `event`, for any sum of whole numbers: square is the largest sum of squares of one client's `dimension`
    numbers, variance that of one share.
    """
    row = DISTRIBUTIONS[mechanism]
    exposure = Exposure(square=square, dimension=dimension, variance=variance, contributors=contributors)
    return replace(row.cost(exposure), delta=row.distance(Fraction(variance)) * dimension * contributors * _FAILURES)


def _invalid(message: str) -> errors.ArgumentValueError:
    return errors.ArgumentValueError(
        f"These terms of distributed noise are invalid: {message}.",
        code="noise_terms",
        hint="`choose` finds a scale and bits that fit.",
    )
