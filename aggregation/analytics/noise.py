"""Noise on the sums of queries and surveys: what may make it, and how much of it there is at most.

Needs no compiler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from coterie import errors
from coterie.aggregation.plan.manifest import DELTA
from coterie.aggregation.private.shared_noise import shared_noise
from coterie.privacy.dp import local
from coterie.privacy.dp.noise import gaussian
from coterie.privacy.dp.privacy import DISTRIBUTED, MATRIX, LocalLevel, Privacy, UserLevel
from coterie.privacy.dp.rounds import round_noise
from coterie.privacy.secagg.encoding import rounding
from coterie.privacy.secagg.ring_sections import ring_sections
from coterie.protocol.codecs.grid import EXTENT
from coterie.protocol.layout import Layout
from coterie.protocol.sections import SectionSpec

if TYPE_CHECKING:
    from coterie.aggregation.experiment import Experiment

NOISE = "noise"
"""What devices are told of it, for the reader's sake: its deviation first."""
FALSE = 1e-3
"""The chance that noise alone passes for anything in a round."""

Noised: TypeAlias = UserLevel | LocalLevel
"""What can hide a client in sums."""


def checked(what: str, privacy: Privacy) -> Noised:
    """The privacy, which is one that sums can have. what: who asks, for the message.

    Raises errors.ExperimentError (``query_invalid``) naming the level or the field, and why it cannot be.
    """
    match privacy:
        case UserLevel() if privacy.mechanism in MATRIX:
            why = f"mechanism={privacy.mechanism!r}: rounds ask different things, so their noise has nothing in common"
        case UserLevel() if privacy.adaptive is not None:
            why = "adaptive: the clip says how many rows of a client count, and must be the same for all rounds"
        case LocalLevel() if privacy.mechanism != "gaussian":
            why = f"mechanism={privacy.mechanism!r}: it sends signs, which do not add up to counts"
        case UserLevel() | LocalLevel():
            return privacy
        case _:
            why = f"{type(privacy).__name__}: it hides a row in steps of training, and sums have none"
    raise errors.ExperimentError(
        f"{what} is noised by UserLevel with a fixed clip and mechanism gaussian, discrete_gaussian or skellam, or by "
        f"LocalLevel with mechanism gaussian, not by {why}.",
        hint="Give UserLevel(clip=<rows>, delta=..., epsilon=...).",
        code="query_invalid",
    )


@dataclass(frozen=True)
class Made:
    """deviation: the largest standard deviation of the noise on a sum in any round: that of a round in which everybody
    answers who is asked, where devices make the noise; the same for all rounds where the coordinator makes it. What
    rounding adds under secure aggregation is in it. clip: the norm up to which a client's vector is sent as it is.
    """

    deviation: float
    clip: float


def made(experiment: Experiment, version: Mapping[str, tuple[int, ...]]) -> Made:
    """The noise of an experiment whose versions have these shapes.

    Raises errors.ExperimentError (``noise_range``, ``privacy_invalid``, ``secure_range``).
    """
    privacy, policy, secure = experiment.privacy, experiment.rounds, experiment.secure
    layout = Layout.of(version)
    match privacy:
        case UserLevel() if privacy.mechanism in DISTRIBUTED and secure is not None:
            terms = shared_noise(privacy, secure, policy, length=layout.size, round=1)
            # A number that is rounded at random adds at most a quarter of a squared step.
            return Made(math.sqrt(policy.cohort * (terms.variance + 0.25)) / terms.scale, privacy.clip)
        case UserLevel():
            rounds = range(1, policy.rounds + 1)
            worst = max(round_noise(privacy, n, policy.rounds, cohort=policy.cohort).updates for n in rounds)
            noise = worst * gaussian.sensitivity(privacy.clip, worst * privacy.clip, layout.size)
            norm = privacy.clip
        case LocalLevel():
            noise = math.sqrt(policy.cohort) * local.deviation(privacy, layout.size)
            norm = local.reach(privacy, layout.size)
        case _:
            raise errors.InternalError("Only experiments whose sums are noised have noise on them.")
    if secure is None:
        return Made(noise, privacy.clip)
    whole = SectionSpec.over(DELTA, layout)
    _, grid = ring_sections((whole,), clients=policy.cohort, weight_cap=policy.weight_cap, norm=norm, bits=secure.bits)
    step = 2 * EXTENT[grid.top.bit_length()] / grid.top * norm / math.sqrt(layout.size)
    # The coordinator's noise is made for vectors that are as long as the clip after rounding.
    room = 1 + rounding(grid, (whole,)) if isinstance(privacy, UserLevel) else 1.0
    return Made(math.hypot(noise, math.sqrt(policy.cohort) * step / 2), privacy.clip / room)


def above_noise(deviation: float, sums: int) -> float:
    """The count that Gaussian noise on so many sums reaches anywhere with a chance of at most `FALSE`."""
    return deviation * math.sqrt(2 * math.log(max(sums, 1) / FALSE)) if deviation else 0.0
