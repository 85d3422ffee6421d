"""Numeric jobs as rows. Every change is one conditional UPDATE, so of two runners exactly one has a job, and of two
results exactly one is kept.

(no row) ──► running ──► done      the result is recorded, in the transaction that tells the round
    ┌──────────┘  │ └──► failed    the job itself refused, and its round was told
    ▼             │
 waiting ◄────────┘                tried again from ``due_at`` on; a runner whose lease has ended has lost it too
    └──────────────────► dropped   its round is over

A job that has to be done again (a sum to which more came) is taken again: its row says how often it was.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from sqlalchemy import CursorResult, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.protocol import ids
from coterie.server.store.tables import JobRow, RoundRow

RUNNING: Final = "running"
WAITING: Final = "waiting"
DONE: Final = "done"
FAILED: Final = "failed"
DROPPED: Final = "dropped"
LIVE: Final = (RUNNING, WAITING)
OPEN_PHASES: Final = ("collecting", "aggregating", "evaluating", "committing")
_OF_OPEN_ROUNDS: Final = (
    select(JobRow)
    .join(RoundRow, (RoundRow.experiment == JobRow.experiment) & (RoundRow.number == JobRow.round))
    .where(RoundRow.phase.in_(OPEN_PHASES))
)


@dataclass(frozen=True, order=True)
class JobKey:
    """Which job: of these there is one row, and so at most one that is live."""

    experiment: str
    round: int
    kind: str
    subject: str = ""

    @staticmethod
    def of(row: JobRow) -> "JobKey":
        """The key of a row."""
        return JobKey(row.experiment, row.round, row.kind, row.subject)


@dataclass(frozen=True)
class Job:
    """A job that a runner has taken.

    attempt: which of its takings this is; whoever takes it next has another.
    """

    id: str
    key: JobKey
    owner: str
    attempt: int
    failures: int


def takeable(row: JobRow | None, now: int) -> bool:
    """Whether a runner may take a job that is wanted. None: it has no row yet."""
    if row is None or row.state in (DONE, FAILED, DROPPED):
        return True
    if row.state == WAITING:
        return row.due_at <= now
    return row.lease_until is None or row.lease_until <= now


def takeable_at(row: JobRow) -> int | None:
    """When a job that is live may be taken, in milliseconds."""
    return row.due_at if row.state == WAITING else row.lease_until


async def of_open_rounds(session: AsyncSession) -> Sequence[JobRow]:
    """The jobs of every round that is not over."""
    return (await session.execute(_OF_OPEN_ROUNDS)).scalars().all()


async def find(session: AsyncSession, key: JobKey) -> JobRow | None:
    """The row of a job."""
    query = select(JobRow).where(*_is(key))
    return (await session.execute(query)).scalar_one_or_none()


async def live_digests(session: AsyncSession) -> frozenset[str]:
    """Of what the jobs of rounds that are not over have made."""
    return frozenset(row.digest for row in await of_open_rounds(session) if row.digest is not None)


async def made(session: AsyncSession, experiment: str, round: int, kind: str) -> Mapping[str, str]:
    """The digests of what a round's jobs of this kind have made, by subject."""
    query = select(JobRow.subject, JobRow.digest).where(
        JobRow.experiment == experiment, JobRow.round == round, JobRow.kind == kind, JobRow.digest.is_not(None)
    )
    return {subject: digest for subject, digest in (await session.execute(query)).all() if digest is not None}


async def take(session: AsyncSession, key: JobKey, owner: str, *, seen: int, now: int, until: int) -> Job | None:
    """Take a job that is wanted. None where somebody else has it or had it since, or it is not to be tried yet.

    seen: how often it had been taken when it was found to be wanted.
    until: when the lease ends, in milliseconds, unless it is extended.
    """
    # Of several runners those that come later look for another job instead of waiting for this row.
    query = select(JobRow).where(*_is(key)).with_for_update(skip_locked=True)
    row = (await session.execute(query)).scalar_one_or_none()
    if row is None:
        return await _first(session, key, owner, now=now, until=until)
    if row.attempt != seen or not takeable(row, now):
        return None
    taken = {"state": RUNNING, "owner": owner, "lease_until": until, "attempt": row.attempt + 1, "finished_at": None}
    same = (JobRow.id == row.id, JobRow.state == row.state, JobRow.attempt == row.attempt)
    if not await _changed(session, *same, **taken):
        return None
    return Job(row.id, key, owner, row.attempt + 1, row.failures)


async def _first(session: AsyncSession, key: JobKey, owner: str, *, now: int, until: int) -> Job | None:
    row = JobRow(
        id=ids.new_id(ids.JOB),
        experiment=key.experiment,
        round=key.round,
        kind=key.kind,
        subject=key.subject,
        state=RUNNING,
        owner=owner,
        lease_until=until,
        due_at=now,
        attempt=1,
        failures=0,
        created_at=now,
    )
    try:
        async with session.begin_nested():
            session.add(row)
    except IntegrityError:
        return None  # another runner was first
    return Job(row.id, key, owner, 1, 0)


async def extend(session: AsyncSession, job: Job, until: int) -> bool:
    """Say that a runner is still at its job. False when it has lost it."""
    return await _changed(session, *_lease(job), lease_until=until)


async def is_leased(session: AsyncSession, job: Job) -> bool:
    """Whether a runner has its job still."""
    return (await session.execute(select(JobRow.id).where(*_lease(job)))).first() is not None


async def finish(
    session: AsyncSession,
    job: Job,
    state: str,
    now: int,
    *,
    result: Mapping[str, Any] | None = None,
    digest: str | None = None,
    error: str | None = None,
) -> bool:
    """Record what came of a job: part of the transaction that makes the result true. False when the runner has lost
    the job, or its round is over: then nothing of the result may be kept.
    """
    text = None if result is None else json.dumps(dict(result), sort_keys=True)
    ended = {"owner": None, "lease_until": None, "finished_at": now, "failures": 0}
    return await _changed(session, *_lease(job), state=state, result=text, digest=digest, error=error, **ended)


async def put_back(session: AsyncSession, job: Job, *, due_at: int, failures: int, error: str | None) -> bool:
    """Let a job be tried again, not before ``due_at``. False when the runner has lost it."""
    return await _changed(
        session,
        *_lease(job),
        state=WAITING,
        owner=None,
        lease_until=None,
        due_at=due_at,
        failures=failures,
        error=None if error is None else error[:2000],
    )


async def redo(session: AsyncSession, key: JobKey, now: int) -> None:
    """Let a job that is done be done again: what it had made is gone."""
    await _changed(session, *_is(key), JobRow.state == DONE, state=WAITING, due_at=now, result=None, digest=None)


async def drop(session: AsyncSession, experiment: str, round: int, now: int) -> None:
    """Let nobody do what a round that is over has left; a runner that is at it keeps no result."""
    live = (JobRow.experiment == experiment, JobRow.round == round, JobRow.state.in_(LIVE))
    await _changed(session, *live, state=DROPPED, owner=None, lease_until=None, finished_at=now)


async def any_running(session: AsyncSession, owner: str | None = None) -> bool:
    """Whether a runner, or this one, has a job."""
    query = select(JobRow.id).where(JobRow.state == RUNNING)
    query = query if owner is None else query.where(JobRow.owner == owner)
    return (await session.execute(query.limit(1))).first() is not None


async def release(session: AsyncSession, now: int, owner: str | None = None) -> None:
    """Let anybody take at once what a runner, or everybody, had: who had it is gone."""
    owned = () if owner is None else (JobRow.owner == owner,)
    await _changed(session, JobRow.state == RUNNING, *owned, state=WAITING, owner=None, lease_until=None, due_at=now)


async def shorten(session: AsyncSession, *, lease_until: int, due_at: int) -> None:
    """End leases, and waits, at these times at the latest: the clock was set back."""
    await _changed(session, JobRow.state == RUNNING, JobRow.lease_until > lease_until, lease_until=lease_until)
    await _changed(session, JobRow.state == WAITING, JobRow.due_at > due_at, due_at=due_at)


def _is(key: JobKey) -> tuple[Any, ...]:
    return (
        JobRow.experiment == key.experiment,
        JobRow.round == key.round,
        JobRow.kind == key.kind,
        JobRow.subject == key.subject,
    )


def _lease(job: Job) -> tuple[Any, ...]:
    return JobRow.id == job.id, JobRow.state == RUNNING, JobRow.owner == job.owner, JobRow.attempt == job.attempt


async def _changed(session: AsyncSession, *conditions: Any, **values: Any) -> bool:
    statement = update(JobRow).where(*conditions).values(**values).execution_options(synchronize_session=False)
    return cast("CursorResult[Any]", await session.execute(statement)).rowcount >= 1
