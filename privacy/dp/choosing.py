"""The scale and the bits of distributed noise: fine enough to waste no noise, wide enough not to wrap.

A finer grid lets rounding lengthen a vector less (`DistributedNoise.inflation`), but spreads the same sum over more
steps of a ring that has only 2**bits of them. `choose` takes the finest grid of which no coordinate of a sum leaves the
ring, but with the chance that `overflow` bounds.
"""

import math

from coterie import errors
from coterie.privacy.dp import spread
from coterie.privacy.dp.distributed import LEAST_VARIANCE, DistributedNoise
from coterie.privacy.dp.noise.conditional_rounding import largest_square
from coterie.privacy.dp.noise.distributions import DISTRIBUTIONS
from coterie.protocol.mechanisms import DistributedMechanism

RARE = 1e-9
"""The chance that a vector's sum wraps anywhere, as `overflow` bounds it, that `choose` allows."""
# A share finer than this gains nothing: its rounding is a thousandth of its noise.
_FINEST_VARIANCE = 2.0**20
_INFLATION = 1.01
# The part of the energy that a block holds, over the part of the coordinates: dealing keeps it near one.
_UNEVEN = 2.0


def choose(
    mechanism: DistributedMechanism,
    *,
    clip: float,
    noise_multiplier: float,
    length: int,
    clients: int,
    contributors: int,
    bits: int | None = None,
) -> DistributedNoise:
    """The terms of a round of at most `clients` clients whose sum is hidden by the noise of `contributors` of them.

    noise_multiplier: the deviation of that noise over the sensitivity, rounding included; what the sum costs is
        `distributed.event` of the result.
    bits: of the ring; None for the fewest, up to 32, with which rounding costs at most 1 % more noise, or the finest
        shares that there are.
    Raises errors.ExperimentError (``noise_range``) where no grid fits: too few bits for so many clients, or noise so
    small beside so long a vector.
    """
    if not 1 <= contributors <= clients:
        raise _refusal(f"{contributors} of at most {clients} clients cannot be counted on")
    found: DistributedNoise | None = None
    for width in range(8, 33) if bits is None else (bits,):
        finer = _finest(mechanism, clip, noise_multiplier, length, clients, contributors, width)
        if finer is None or (found is not None and finer.scale <= found.scale):
            continue
        found = finer
        if found.inflation <= _INFLATION:
            break
    if found is not None:
        return found
    raise _refusal(
        f"{clients} vectors of {length} coordinates with a noise multiplier of {noise_multiplier:g} do not fit "
        f"a ring of {bits or 32} bits"
    )


def overflow(terms: DistributedNoise, clients: int) -> float:
    """A bound of the chance that any coordinate of the sum of `clients` clients wraps, over the rotation's seed, the
    rounding and the noise: twice the dimension times Chernoff's bound of one coordinate.

    For the worst case of all vectors alike and of norm `clip`, with at most twice a block's part of the energy in it.
    """
    half = float(1 << (terms.bits - 1)) - 1
    signal = _UNEVEN * (clients * terms.clip * terms.scale) ** 2 / terms.padded + clients / 4
    noise = clients * terms.variance
    exponent = DISTRIBUTIONS[terms.mechanism].tilt(half, signal, noise)
    return min(1.0, 2 * terms.padded * math.exp(-max(0.0, exponent)))


def _finest(
    mechanism: DistributedMechanism,
    clip: float,
    multiplier: float,
    length: int,
    clients: int,
    contributors: int,
    bits: int,
) -> DistributedNoise | None:
    """The terms of the largest scale that fits; None where even a share of the least variance does not."""

    def terms_at(steps: float) -> DistributedNoise | None:
        """The terms with a grid of so many steps.

        steps: of the grid in `clip`.
        """
        variance = multiplier**2 * largest_square(steps, dimension) / contributors
        if not LEAST_VARIANCE <= variance <= most:
            return None
        return DistributedNoise(
            mechanism=mechanism,
            clip=clip,
            scale=steps / clip,
            variance=variance,
            contributors=contributors,
            bits=bits,
            length=length,
        )

    dimension = spread.padded(length)
    most = min(_FINEST_VARIANCE, DISTRIBUTIONS[mechanism].largest_variance)
    low, high = math.log(1e-3), math.log(2.0**30)
    found: DistributedNoise | None = None
    for _ in range(60):
        middle = (low + high) / 2
        terms = terms_at(math.exp(middle))
        variance = multiplier**2 * largest_square(math.exp(middle), dimension) / contributors
        if variance > most or (terms is not None and overflow(terms, clients) > RARE):
            high = middle
        else:
            low = middle
            found = terms if terms is not None else found
    return found


def _refusal(message: str) -> errors.ExperimentError:
    return errors.ExperimentError(
        f"Distributed noise cannot be chosen: {message}.",
        hint="Use fewer clients per round, a smaller model, or another epsilon: a multiplier far above 100 makes noise "
        "too wide for the ring, one far below 0.1 asks for a grid too fine for it.",
        code="noise_range",
    )
