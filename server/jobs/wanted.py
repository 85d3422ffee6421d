"""What is due for rounds (`coterie.aggregation.due`), read with the rows of their attempts, and the jobs of it."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from coterie.aggregation.engine import AttemptStage, Do, Due, SumAttempt, Work, due
from coterie.protocol.device import TaskKind
from coterie.server.store import attempts, jobs
from coterie.server.store.attempts import AttemptStatus
from coterie.server.store.experiments import OpenRound
from coterie.server.store.jobs import JobKey
from coterie.server.store.tables import JobRow

AGGREGATE: Final = "aggregate"
ACCUMULATE: Final = "accumulate"
EVALUATE: Final = "evaluate"
SECURE_SUM: Final = "secure_sum"
UNMASK: Final = "unmask"
SECURE_AGGREGATE: Final = "secure_aggregate"
SECURE_EVALUATION: Final = "secure_evaluation"
SUM_AT_ONCE: Final = 8
"""So many masked vectors that are not in the running sum yet are worth a job, before the phase ends."""
JOBS: Final[Mapping[Work, str]] = {
    Work.AGGREGATE: AGGREGATE,
    Work.EVALUATE: EVALUATE,
    Work.UNMASK: UNMASK,
    Work.SUM: SECURE_AGGREGATE,
    Work.SUM_EVALUATIONS: SECURE_EVALUATION,
}
"""Work that takes so long that it is a job; the rest is one transaction each."""
JobRows = Mapping[JobKey, JobRow]


def due_entries(opened: OpenRound, statuses: Sequence[AttemptStatus], rows: JobRows, now: int) -> tuple[Due, ...]:
    """What is due for a round.

    statuses: of the attempts that are not over.
    rows: of the jobs of all open rounds.
    now: milliseconds.
    """
    sums = [SumAttempt(each.id, _kind(each), _stage(each, rows, now)) for each in _of(opened, statuses)]
    return due(opened.value, sums)


def jobs_to_do(
    opened: OpenRound, entries: Sequence[Due], statuses: Sequence[AttemptStatus], rows: JobRows, now: int
) -> list[JobKey]:
    """The jobs of a round that somebody should do now, or is at: those that are due, and sums that are worth beginning
    while vectors still come.

    entries: from `due_entries`.
    """
    found = [_key(each, SECURE_SUM) for each in _of(opened, statuses) if _worth_adding(each, rows, now)]
    for entry in entries:
        if isinstance(entry, Do) and entry.work in JOBS:
            above = entry.work is Work.AGGREGATE and opened.row.upstream is not None
            kind = ACCUMULATE if above else JOBS[entry.work]
            found.append(JobKey(opened.row.experiment, opened.row.number, kind, entry.attempt or ""))
    return found


def _of(opened: OpenRound, statuses: Sequence[AttemptStatus]) -> list[AttemptStatus]:
    place = opened.row.experiment, opened.row.number
    return [each for each in statuses if (each.experiment, each.round) == place]


def _kind(status: AttemptStatus) -> TaskKind:
    return "train" if status.kind == "train" else "evaluate"


def _stage(status: AttemptStatus, rows: JobRows, now: int) -> AttemptStage:
    """What an attempt waits for, as the engine knows it."""
    if status.phase == attempts.GATHERING:
        return AttemptStage.GATHERING
    if status.phase != attempts.UNMASKING:
        return AttemptStage.ANSWERED if status.due(now) else AttemptStage.ASKING
    row = rows.get(_key(status, UNMASK))
    return AttemptStage.OPENED if row is not None and row.state == jobs.DONE else AttemptStage.CLOSED


def _key(status: AttemptStatus, kind: str) -> JobKey:
    return JobKey(status.experiment, status.round, kind, status.id)


def _worth_adding(status: AttemptStatus, rows: JobRows, now: int) -> bool:
    if status.phase != "masked" or status.due(now):
        return False
    row = rows.get(_key(status, SECURE_SUM))
    holds = 0 if row is None or row.result is None else int(json.loads(row.result)["holds"])
    return status.arrived - holds >= SUM_AT_ONCE
