"""Which devices may take a training task of a round, and what is known of each for its selection. Pure."""

from collections.abc import Sequence

from coterie.aggregation.engine import Kind
from coterie.aggregation.selection import Candidate
from coterie.privacy.dp.participation import may_take_part
from coterie.protocol.device import DataReport
from coterie.protocol.privacy import ExampleLevel, LocalLevel, Privacy
from coterie.protocol.rounds import RoundPolicy
from coterie.server.store import tasks
from coterie.server.store.tables import ParticipationRow

ATTEMPTS = 3
"""So many tasks of one kind may a device have in one round, when the earlier ones failed."""


def has_the_data(policy: RoundPolicy, report: DataReport | None) -> bool:
    """Whether a device's own report meets what a policy asks of its data."""
    asks = policy.min_examples is not None or bool(policy.labels)
    return not asks or (
        report is not None
        and report.examples >= (policy.min_examples or 0)
        and set(policy.labels) <= set(report.labels)
    )


def eligible(
    policy: RoundPolicy,
    report: DataReport | None,
    past: ParticipationRow | None,
    *,
    round: int,
    now: int,
    privacy: Privacy | None,
) -> bool:
    """Whether a device may take part in this round.

    report: what it says of its data, if its owner lets it; a policy that asks for data is met by those alone that say
    so. past: its last contribution to this experiment; rest_rounds and rest_s count from there. privacy: what is
    accounted for is how far apart and how often a device takes part; it never does more.
    """
    if not has_the_data(policy, report):
        return False
    if past is None:
        return True
    if not may_take_part(privacy, round=round, last_round=past.last_round, times=past.times):
        return False
    # A clock that was set back says nothing of how long ago it was, and must not shut devices out until it catches up.
    rests = 0 <= now - past.at < policy.rest_s * 1000
    return round - past.last_round > policy.rest_rounds and not rests


def may_try(states: Sequence[str], kind: Kind, privacy: Privacy | None) -> bool:
    """Whether a device may have a task of this kind in a round in which it has had tasks in these states, none of which
    it holds.
    """
    if tasks.ACCEPTED in states or tasks.REFUSED in states or len(states) >= ATTEMPTS:
        return False
    # What a device trains anew it noises anew, and a round pays for one upload of each device: of a task that came to
    # nothing the coordinator may have seen most.
    return not (states and kind == "train" and isinstance(privacy, LocalLevel | ExampleLevel))


def candidate(policy: RoundPolicy, device: str, report: DataReport | None, past: ParticipationRow | None) -> Candidate:
    """A device as selectors see it. Without a report, its rows are those that its last update counted; whatever it
    says, they are no more than one update may weigh.
    """
    said = None if report is None else min(report.examples, policy.weight_cap)
    if past is None:
        return Candidate(id=device, examples=said)
    return Candidate(
        id=device,
        examples=past.examples if said is None else said,
        loss=past.loss,
        seconds=past.seconds,
        last_round=past.last_round,
        times=past.times,
    )
