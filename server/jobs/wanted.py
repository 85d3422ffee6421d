"""Which jobs are wanted: pure, from what is due for each round (`coterie.aggregation.due`) and from its attempts."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from coterie.aggregation.engine import Work, work_due
from coterie.server.secure.sums import SUMMED
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
OF_SUMS: Final[Mapping[Work, str]] = {Work.SUM: SECURE_AGGREGATE, Work.SUM_EVALUATIONS: SECURE_EVALUATION}
"""Work on sums: the job that makes something of the opened ones."""


def wanted(
    opened: Sequence[OpenRound], standings: Sequence[AttemptStatus], rows: Mapping[JobKey, JobRow], now: int
) -> list[JobKey]:
    """The jobs that somebody should do now, or is at.

    standings: of the attempts that are not over.
    rows: of the jobs of these rounds.
    now: milliseconds.
    """
    found: list[JobKey] = []
    for one in opened:
        experiment, number, work = one.row.experiment, one.row.number, work_due(one.value)
        mine = [each for each in standings if (each.experiment, each.round) == (experiment, number)]
        found += [_key(each, SECURE_SUM) for each in mine if _worth_adding(each, rows, now)]
        if work is Work.AGGREGATE:
            kind = AGGREGATE if one.row.upstream is None else ACCUMULATE
            found.append(JobKey(experiment, number, kind))
        elif work is Work.EVALUATE:
            found.append(JobKey(experiment, number, EVALUATE))
        elif work is not None and work in OF_SUMS:
            summing = [each for each in mine if each.kind == SUMMED[work]]
            ready = [_key(each, UNMASK) for each in summing if each.phase == attempts.UNMASKING]
            closed = [key for key in ready if key not in rows or rows[key].state != jobs.DONE]
            found += closed
            if summing and len(ready) == len(summing) and not closed:
                found.append(JobKey(experiment, number, OF_SUMS[work]))
    return found


def _key(standing: AttemptStatus, kind: str) -> JobKey:
    return JobKey(standing.experiment, standing.round, kind, standing.id)


def _worth_adding(standing: AttemptStatus, rows: Mapping[JobKey, JobRow], now: int) -> bool:
    if standing.phase != "masked" or standing.due(now):
        return False
    row = rows.get(_key(standing, SECURE_SUM))
    holds = 0 if row is None or row.result is None else int(json.loads(row.result)["holds"])
    return standing.arrived - holds >= SUM_AT_ONCE
