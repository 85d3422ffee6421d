"""Noise on the sums of queries and surveys: what may make it, and how much of it there is at most.

Needs no compiler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from coterie import errors
from coterie.aggregation.analytics.places import smallest_block
from coterie.aggregation.plan.manifest import DELTA
from coterie.aggregation.private.central import CentralNoise, deviation_of
from coterie.aggregation.private.shared_noise import shared_noise
from coterie.privacy.dp import local
from coterie.privacy.secagg.encoding import rounding
from coterie.privacy.secagg.ring_sections import ring_sections
from coterie.protocol.codecs.grid import EXTENT
from coterie.protocol.layout import Layout
from coterie.protocol.mechanisms import DISTRIBUTED, MATRIX
from coterie.protocol.privacy import ExampleLevel, LocalLevel, Privacy, UserLevel
from coterie.protocol.sections import SectionSpec
from coterie.protocol.secure_sections import SecureSection

if TYPE_CHECKING:
    from coterie.aggregation.experiment import Experiment
    from coterie.protocol.secure_aggregation import SecureAggregation

NOISE = "noise"
"""What devices are told of it, for the reader's sake: its deviation first."""
FALSE = 1e-3
"""The chance that noise alone passes for anything in a round."""

NoisyPrivacy: TypeAlias = UserLevel | LocalLevel
"""What can hide a client in sums."""
ShapesByName: TypeAlias = Mapping[str, tuple[int, ...]]
"""Of a version's tensors, by name."""


def checked(what: str, privacy: Privacy) -> NoisyPrivacy:
    """The privacy, which is one that sums can have.

    what: who asks, for the message.

    Raises errors.ExperimentError (``query_invalid``) naming the level or the field, and why it cannot be.
    """
    match privacy:
        case UserLevel() if privacy.mechanism in MATRIX:
            why = (
                f"mechanism={privacy.mechanism!r}: its noise is correlated over rounds, and each round asks "
                "something else"
            )
        case UserLevel() if privacy.adaptive is not None:
            why = "adaptive: the clip says how many rows of a client count, and must be the same for all rounds"
        case LocalLevel() if privacy.mechanism != "gaussian":
            why = f"mechanism={privacy.mechanism!r}: it sends signs, which do not add up to counts"
        case UserLevel() | LocalLevel():
            return privacy
        case ExampleLevel():
            why = "ExampleLevel: it hides a row in steps of training, and sums have none"
        case _:
            why = f"{privacy!r}, which is not a level of privacy"
    raise errors.ExperimentError(
        f"{what} is noised by UserLevel with a fixed clip and mechanism gaussian, {' or '.join(DISTRIBUTED)}, or by "
        f"LocalLevel with mechanism gaussian, not by {why}.",
        hint="Give UserLevel(clip=<rows>, delta=..., epsilon=...).",
        code="query_invalid",
    )


def deviation(experiment: Experiment, version: ShapesByName) -> float:
    """The largest standard deviation of the noise on a sum in any round of an experiment whose versions have these
    shapes: that of a round in which everybody answers who is asked, where devices make the noise; the same whoever
    answers where the coordinator makes it. What rounding adds under secure aggregation is in it.

    Raises errors.ExperimentError (``noise_range``, ``privacy_invalid``, ``secure_range``).
    """
    privacy, policy, secure = experiment.privacy, experiment.rounds, experiment.secure
    length = Layout.of(version).size
    match privacy:
        case UserLevel() if privacy.mechanism in DISTRIBUTED and secure is not None:
            terms = shared_noise(privacy, secure, policy, length=length, round=1)
            # A number that is rounded at random adds at most a quarter of a squared step.
            return math.sqrt(policy.cohort * (terms.variance + 0.25)) / terms.scale
        case UserLevel():
            rounds = (
                CentralNoise(privacy=privacy, round=number, rounds=policy.rounds, expected=policy.cohort, seed=b"")
                for number in range(1, policy.rounds + 1)
            )
            noise = max(deviation_of(terms, privacy.clip, length) for terms in rounds)
            norm = privacy.clip
        case LocalLevel():
            noise = math.sqrt(policy.cohort) * local.deviation(privacy, length)
            norm = local.reach(privacy, length)
        case _:
            raise errors.InternalError("Only experiments whose sums are noised have noise on them.")
    if secure is None:
        return noise
    _, grid = _grid(experiment, secure, version, norm)
    step = 2 * EXTENT[grid.top.bit_length()] / grid.top * norm / math.sqrt(length)
    return math.hypot(noise, math.sqrt(policy.cohort) * step / 2)


def with_room(experiment: Experiment, version: ShapesByName) -> NoisyPrivacy:
    """The experiment's privacy with a clip so much wider that a vector as long as the clip before is sent as it is.

    Under secure aggregation the coordinator makes its noise for vectors that are as long as the clip after rounding,
    and devices shorten them accordingly before. Raises errors.ExperimentError (``privacy_invalid``, ``secure_range``).
    """
    privacy, secure = experiment.privacy, experiment.secure
    if isinstance(privacy, UserLevel) and privacy.mechanism not in DISTRIBUTED and secure is not None:
        whole, grid = _grid(experiment, secure, version, privacy.clip)
        return privacy.but(clip=privacy.clip * (1 + rounding(grid, (whole,))))
    if isinstance(privacy, UserLevel | LocalLevel):
        return privacy
    raise errors.InternalError("Only experiments whose sums are noised have a clip to widen.")


TOGETHER = math.sqrt(2)
"""The most of a client's norm that turns up at once where two of its sums share a block."""


def check_ring(what: str, experiment: Experiment, version: ShapesByName, sums: int, peak: float = TOGETHER) -> None:
    """That the numbers of clients fit the ring of secure aggregation even where all rows of each add to one sum, and
    all clients to the same (see `places`).

    what: who asks.
    sums: how many there are.
    peak: how much of a client's norm may turn up at once.

    Raises errors.ExperimentError (``query_invalid``): it would be cut there, or wrap, and no answer would tell.
    """
    privacy, policy, secure = experiment.privacy, experiment.rounds, experiment.secure
    length = Layout.of(version).size
    if secure is None or privacy is None or isinstance(privacy, ExampleLevel):
        return
    most = peak * privacy.clip / math.sqrt(smallest_block(sums, length))
    if isinstance(privacy, UserLevel) and privacy.mechanism in DISTRIBUTED:
        terms = shared_noise(privacy, secure, policy, length=length, round=1)
        room = 2.0 ** (terms.bits - 1) - 6 * math.sqrt(policy.cohort * terms.variance)
        fits = policy.cohort * most * terms.scale <= room
    else:
        norm = privacy.clip if isinstance(privacy, UserLevel) else local.reach(privacy, length)
        _, grid = _grid(experiment, secure, version, norm)
        fits = most <= EXTENT[grid.top.bit_length()] * norm / math.sqrt(length)
    if not fits:
        raise errors.ExperimentError(
            f"{what} makes {sums} sums, too many for secure aggregation with this noise: a client whose rows all "
            "fall into the same few sums would not count in full, and the answer would not show it.",
            hint="Ask for fewer sums at once (a smaller step or a larger fraction, fewer bins or levels, a smaller "
            "`most`), let devices make the noise (mechanism='discrete_gaussian'), or set secure_aggregation=False.",
            code="query_invalid",
        )


def _grid(
    experiment: Experiment, secure: SecureAggregation, version: ShapesByName, norm: float
) -> tuple[SectionSpec, SecureSection]:
    """The section of the sums, and how it travels under secure aggregation."""
    policy, whole = experiment.rounds, SectionSpec.over(DELTA, Layout.of(version))
    _, grid = ring_sections((whole,), clients=policy.cohort, weight_cap=policy.weight_cap, norm=norm, bits=secure.bits)
    return whole, grid


def above_noise(noise: float, sums: int) -> float:
    """The count that noise of this deviation on so many sums reaches anywhere with a chance of at most `FALSE`."""
    return noise * math.sqrt(2 * math.log(max(sums, 1) / FALSE)) if noise else 0.0
