"""Clipping to a quantile of the updates' norms that nobody ever sees (Andrew, Thakkar, McMahan, Ramaswamy:
"Differentially Private Learning with Adaptive Clipping", NeurIPS 2021, algorithm 1).

Each device adds the bit ½ if its update was no longer than the clip, else −½, to a noisy sum. Half a unit is its
sensitivity, so noise of σ on the sum of bits is a Gaussian of multiplier 2 σ.
"""

from __future__ import annotations

import math

from coterie import errors
from coterie.protocol.privacy import AdaptiveClip

LEAST_CLIP, MOST_CLIP = 1e-6, 1e6


def bit(norm: float, clip: float) -> float:
    """What a device adds to the sum of bits: ½ where its update needed no clipping, else −½. NaN needs clipping."""
    return 0.5 if norm <= clip else -0.5


def bits_stddev(adaptive: AdaptiveClip, cohort: int) -> float:
    """The standard deviation of the noise on the sum of bits."""
    return cohort / 20 if adaptive.bits_noise is None else adaptive.bits_noise


def updates_multiplier(multiplier: float, bits: float) -> float:
    """The noise multiplier of the updates, so that they and the bits together cost what `multiplier` costs:
    (z⁻² − (2 σ_b)⁻²)^-½.

    Raises errors.ExperimentError (``privacy_invalid``) where the bits alone would cost as much.
    """
    left = multiplier**-2 - (2 * bits) ** -2
    if left <= 1e-3 * multiplier**-2:
        raise errors.ExperimentError(
            f"AdaptiveClip: noise of {bits:g} on the sum of the clip bits costs as much as the noise multiplier "
            f"{multiplier:g} allows altogether; raise bits_noise well above {multiplier / 2:g}, or the cohort above "
            f"{math.ceil(10 * multiplier)}.",
            code="privacy_invalid",
        )
    return left**-0.5


def next_clip(clip: float, noisy_bits: float, cohort: int, adaptive: AdaptiveClip) -> float:
    """The next round's clip: C · exp(−η (b − γ)), b the noisy share of updates that needed no clipping.

    noisy_bits: the noisy sum of `bit`.
    cohort: the PUBLIC number of devices that a sum is divided by. A sum that is not finite changes nothing; the clip
        stays within 10⁻⁶..10⁶.
    """
    share = noisy_bits / cohort + 0.5
    if not math.isfinite(share):
        return clip
    # What noise says of a share may lie far outside 0..1; no step is larger than e^(2 η).
    moved = clip * math.exp(-adaptive.rate * min(max(share - adaptive.quantile, -2.0), 2.0))
    return min(max(moved, LEAST_CLIP), MOST_CLIP)
