"""Who may take part in a round, so that what was accounted is what happens: how far apart, and how often."""

from __future__ import annotations

import math

from coterie import errors
from coterie.protocol.privacy import Privacy, UserLevel


def required_rest(privacy: Privacy | None) -> int:
    """The least RoundPolicy.rest_rounds: rounds that must pass between two participations of one device."""
    return privacy.min_separation - 1 if isinstance(privacy, UserLevel) else 0


def most_participations(privacy: Privacy | None, rounds: int) -> int:
    """How often one device takes part in so many rounds, at the most."""
    if not isinstance(privacy, UserLevel):
        return rounds
    apart = math.ceil(rounds / privacy.min_separation)
    return min(apart, privacy.max_participations or apart)


def check_policy(privacy: Privacy | None, *, rounds: int, rest_rounds: int) -> None:
    """Refuse rounds that would let a device take part more often than is accounted, or noise for other rounds.

    Raises errors.ExperimentError (``privacy_invalid``) saying what to set.
    """
    if not isinstance(privacy, UserLevel):
        return
    if rest_rounds < required_rest(privacy):
        raise errors.ExperimentError(
            f"UserLevel(min_separation={privacy.min_separation}) needs RoundPolicy(rest_rounds="
            f"{required_rest(privacy)}) or more, not {rest_rounds}: devices would come back sooner than is accounted.",
            code="privacy_invalid",
        )
    if privacy.schedule is not None and len(privacy.schedule) != rounds:
        raise errors.ExperimentError(
            f"UserLevel: schedule has {len(privacy.schedule)} factors for {rounds} rounds; give one per round.",
            code="privacy_invalid",
        )


def may_take_part(privacy: Privacy | None, *, round: int, last_round: int | None, times: int) -> bool:
    """Whether a device may be asked for an update in this round: the rule that selection must hold.

    last_round: in which its last update was accepted, or asked for and not yet given up; None for never.
    times: how many were, in this experiment. An update counts from the moment in which it may reach a sum, also if the
        round is abandoned later.
    """
    if not isinstance(privacy, UserLevel):
        return True
    if privacy.max_participations is not None and times >= privacy.max_participations:
        return False
    return last_round is None or round - last_round >= privacy.min_separation
