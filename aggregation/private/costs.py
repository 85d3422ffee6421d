"""What the rounds of an experiment cost in privacy, its noise as it is really made."""

from collections.abc import Collection

from coterie.aggregation.private.shared_noise import measured
from coterie.privacy.dp.events import PrivacyEvent
from coterie.privacy.dp.rounds import Draws, RoundCost, round_cost
from coterie.protocol.mechanisms import DISTRIBUTED
from coterie.protocol.privacy import Privacy, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secure_aggregation import SecureAggregation

SMALLEST_DELTA = 1e-12
"""At which the loss of pure mechanisms is told, whose δ is 0."""


def really_measured(
    privacy: Privacy, secure: SecureAggregation | None, policy: RoundPolicy, *, length: int, round: int = 1
) -> RoundCost | None:
    """What noise that devices make together really costs in a round; None where the noise is made at one place.

    length: of the weights that are noised.
    Raises errors.ExperimentError (``noise_range``, ``privacy_invalid``).
    """
    if secure is None or not isinstance(privacy, UserLevel) or privacy.mechanism not in DISTRIBUTED:
        return None
    return measured(privacy, secure, policy, length=length, round=round)


def cost_of(
    privacy: Privacy,
    secure: SecureAggregation | None,
    policy: RoundPolicy,
    round: int,
    *,
    released: Collection[int],
    length: int,
    draws: Draws | None = None,
) -> tuple[PrivacyEvent, ...]:
    """What a round adds to what the rounds before have cost.

    released: those of them that are paid for.
    """
    real = really_measured(privacy, secure, policy, length=length, round=round)
    return round_cost(
        privacy, round, policy.rounds, released=released, cohort=policy.cohort, draws=draws, measured=real
    )
