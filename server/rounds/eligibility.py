"""What the rules of who may take part (`coterie.aggregation.eligibility`) are told of devices."""

from collections.abc import Sequence

from coterie.aggregation.eligibility import ClientHistory, Holdings, TaskOutcome
from coterie.protocol.device import DataReport
from coterie.server.store import tasks
from coterie.server.store.tables import ParticipationRow

_OUTCOMES = {
    tasks.LEASED: TaskOutcome.OUT,
    tasks.ACCEPTED: TaskOutcome.ACCEPTED,
    tasks.REFUSED: TaskOutcome.REFUSED,
}


def holdings(report: DataReport | None) -> Holdings | None:
    """What a device says of its data, if its owner lets it."""
    return None if report is None else Holdings(report.examples, frozenset(report.labels))


def contribution(past: ParticipationRow | None, now: int) -> ClientHistory | None:
    """What an experiment remembers of a device.

    now: milliseconds; a clock that was set back says nothing of how long ago it was, and must not shut devices out
        until it catches up.
    """
    if past is None:
        return None
    ago = now - past.at
    return ClientHistory(
        last_round=past.last_round,
        times=past.times,
        rested_s=ago / 1000 if ago >= 0 else None,
        examples=past.examples,
        loss=past.loss,
        seconds=past.seconds,
    )


def outcomes(states: Sequence[str]) -> list[TaskOutcome]:
    """What became of tasks in these states."""
    return [_OUTCOMES.get(state, TaskOutcome.LOST) for state in states]
