"""The noise that the devices of a round add together under secure aggregation: each one's share, and what it costs."""

import math
from functools import lru_cache
from typing import Any, cast

from coterie import errors
from coterie.privacy.dp import distributed
from coterie.privacy.dp.accounting import total_cost
from coterie.privacy.dp.choosing import choose
from coterie.privacy.dp.events import Concentrated
from coterie.privacy.dp.rounds import RoundCost, round_noise, whole_cost
from coterie.privacy.secagg.parameters import share_of
from coterie.protocol.mechanisms import DISTRIBUTED, DistributedMechanism
from coterie.protocol.privacy import UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secure_aggregation import SecureAggregation


def shared_noise(
    privacy: UserLevel, secure: SecureAggregation, policy: RoundPolicy, *, length: int, round: int
) -> distributed.DistributedNoise:
    """How the devices of a round encode and noise their changes of `length` weights.

    The noise is made for the fewest survivors that the round may have, less those that may work together with the
    coordinator, since they know their own shares; and where an epsilon was asked for, all rounds keep within it, with
    rounding and the tails of the mechanism. Raises errors.ExperimentError (``noise_range``, ``privacy_invalid``).
    """
    honest = policy.min_updates - share_of(secure.corrupt, policy.cohort)
    multiplier = round_noise(privacy, round, policy.rounds, cohort=policy.cohort).updates
    mechanism = _distributed(privacy)
    found = _choose_terms(mechanism, privacy.clip, multiplier, length, policy.cohort, max(honest, 1))
    for _ in range(_CORRECTIONS):
        # Frozen messages have a hash, which a type checker does not see.
        over: float = cast(Any, _cost_ratio)(privacy, policy.rounds, policy.cohort, distributed.event(found))
        if not 1 < over < math.inf:
            break
        multiplier *= over * (1 + 1e-6)
        found = _choose_terms(mechanism, privacy.clip, multiplier, length, policy.cohort, max(honest, 1))
    return found


def measured(
    privacy: UserLevel, secure: SecureAggregation, policy: RoundPolicy, *, length: int, round: int = 1
) -> RoundCost:
    """What one such round costs, as its mechanism has it."""
    return RoundCost(distributed.event(shared_noise(privacy, secure, policy, length=length, round=round)))


_CORRECTIONS = 4


def _distributed(privacy: UserLevel) -> DistributedMechanism:
    found: DistributedMechanism | None = next((name for name in DISTRIBUTED if name == privacy.mechanism), None)
    if found is None:
        raise errors.InternalError(f"Devices do not share noise of the mechanism {privacy.mechanism}.")
    return found


@lru_cache(maxsize=256)
def _cost_ratio(privacy: UserLevel, rounds: int, cohort: int, real: Concentrated) -> float:
    """What all rounds of this noise cost, over the epsilon that was asked for; 1 where none was."""
    if privacy.epsilon is None:
        return 1.0
    events = whole_cost(privacy, rounds, cohort=cohort, measured=RoundCost(real))
    return total_cost(events, privacy.delta).epsilon / privacy.epsilon


@lru_cache(maxsize=64)
def _choose_terms(
    mechanism: DistributedMechanism, clip: float, multiplier: float, length: int, clients: int, contributors: int
) -> distributed.DistributedNoise:
    return choose(
        mechanism,
        clip=clip,
        noise_multiplier=multiplier,
        length=length,
        clients=clients,
        contributors=contributors,
    )
