"""What an experiment's secure aggregation comes to beside its privacy and its rounds."""

import math

from coterie.privacy.secagg.parameters import LEAST_CLIENTS, share_of
from coterie.protocol.control import ExperimentCreate
from coterie.protocol.mechanisms import DISTRIBUTED
from coterie.protocol.privacy import Privacy, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secagg import SecureMode
from coterie.protocol.secure_aggregation import SecureAggregation

FROM_COHORT = 10
"""Experiments of this cohort or a larger one aggregate securely unless they say otherwise."""


def shares_noise(privacy: Privacy | None) -> bool:
    """Whether each device adds only its share of the noise, so that it counts on the others of its sum."""
    return isinstance(privacy, UserLevel) and privacy.mechanism in DISTRIBUTED


def coordinator_noises(privacy: Privacy | None) -> bool:
    """Whether the coordinator adds the noise itself: to a sum, before anybody sees what is made of it."""
    return isinstance(privacy, UserLevel) and not shares_noise(privacy)


def mode_for(secure: SecureAggregation, privacy: Privacy | None) -> SecureMode:
    """The mode that is asked for. Where none is: ``consistent`` if devices share the noise, since in ``semi_honest``
    they would have to trust the coordinator with it; else ``semi_honest``.
    """
    return secure.mode or ("consistent" if shares_noise(privacy) else "semi_honest")


def settled(secure: SecureAggregation, privacy: Privacy | None) -> SecureAggregation:
    """The same with the mode that an experiment of this privacy runs in."""
    return secure.but(mode=mode_for(secure, privacy))


def secure_of(request: ExperimentCreate) -> SecureAggregation | None:
    """How a request's rounds aggregate, its mode settled; None where updates come in clear."""
    return None if request.secure is None else settled(request.secure, request.privacy)


def with_room(policy: RoundPolicy, secure: SecureAggregation) -> RoundPolicy:
    """The policy whose rounds outlive the drop-out that is counted on: where it does not say how many updates are
    enough, the cohort without a share of `dropout` are, and never fewer than devices take part with by themselves.
    """
    if "min_updates" in policy.model_fields_set:
        return policy
    fewest = policy.cohort - math.floor(secure.dropout * policy.cohort)
    return policy.model_copy(update={"min_updates": min(policy.cohort, max(fewest, LEAST_CLIENTS))})


def fewest_of_group(cohort: int, secure: SecureAggregation) -> int:
    """Of how few clients the sum of one of its groups may be: the smallest group, less the share that may vanish, as
    far as devices take part in so small a sum by themselves.
    """
    smallest = cohort // (secure.groups or 1)
    return max(smallest - share_of(secure.dropout, smallest), min(smallest, LEAST_CLIENTS))
