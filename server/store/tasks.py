"""Tasks as rows. Every change of state is one conditional UPDATE, so of two contenders exactly one wins.

leased ──► accepted        the update is durable and counted once
       ├─► refused         the update may not enter an aggregate
       ├─► aborted         the device gave it up
       ├─► expired         the lease ran out
       ├─► stale           its base lags behind by more than the staleness cap
       └─► closed          the round no longer needs it

An accepted update belongs to a buffer: the round that counts it. What waits for the next round becomes stale with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from sqlalchemy import CursorResult, bindparam, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.server.store.tables import AttemptRow, RoundRow, TaskRow

LEASED: Final = "leased"
ACCEPTED: Final = "accepted"
REFUSED: Final = "refused"
ABORTED: Final = "aborted"
EXPIRED: Final = "expired"
CLOSED: Final = "closed"
STALE: Final = "stale"
COUNTED: Final = "counted"
ROLLED_BACK: Final = "rolled_back"
ATTEMPT_FAILED: Final = "attempt_failed"
ATTEMPT_DROPPED: Final = "attempt_dropped"
OF_ATTEMPTS: Final = (ATTEMPT_FAILED, ATTEMPT_DROPPED)
"""Codes of tasks that fell with their attempt, or out of it, without having said why."""

# Built once: these run several times a request, and building a statement takes longer than SQLite takes to run it.
_FIND: Final = select(TaskRow).where(TaskRow.id == bindparam("task"), TaskRow.device == bindparam("device"))
_LEASE_OF: Final = select(TaskRow).where(TaskRow.device == bindparam("device"), TaskRow.state == LEASED)
_TRIED: Final = select(TaskRow.state).where(
    TaskRow.experiment == bindparam("of_experiment"),
    TaskRow.round == bindparam("of_round"),
    TaskRow.kind == bindparam("of_kind"),
    TaskRow.device == bindparam("of_device"),
)
_NEXT_EXPIRY: Final = select(func.min(TaskRow.lease_until)).where(TaskRow.state == LEASED)


async def find(session: AsyncSession, task: str, device: str) -> TaskRow | None:
    """A device's own task; another device's is as good as unknown."""
    return (await session.execute(_FIND, {"task": task, "device": device})).scalar_one_or_none()


async def experiment_of(session: AsyncSession, task: str, device: str) -> str | None:
    """The experiment of a device's own task; another device's is as good as unknown."""
    query = select(TaskRow.experiment).where(TaskRow.id == task, TaskRow.device == device)
    return (await session.execute(query)).scalar_one_or_none()


async def lease_of(session: AsyncSession, device: str) -> TaskRow | None:
    """The task that a device holds now."""
    return (await session.execute(_LEASE_OF, {"device": device})).scalar_one_or_none()


async def leave(session: AsyncSession, task: str, state: str, changes: Mapping[str, Any]) -> bool:
    """Take a task out of ``leased``. False when it was not leased any more; then nothing changed."""
    result = await session.execute(
        update(TaskRow).where(TaskRow.id == task, TaskRow.state == LEASED).values(state=state, **changes)
    )
    return cast("CursorResult[Any]", result).rowcount == 1


async def extend(session: AsyncSession, task: str, until: int) -> bool:
    """Move the end of a lease. False when the task is not leased any more."""
    result = await session.execute(
        update(TaskRow).where(TaskRow.id == task, TaskRow.state == LEASED).values(lease_until=until)
    )
    return cast("CursorResult[Any]", result).rowcount == 1


async def close(session: AsyncSession, experiment: str, round: int, kind: str, now: int) -> None:
    """Take back every leased task of this kind that was handed out by this round or, in buffered mode, before it."""
    await session.execute(
        update(TaskRow)
        .where(TaskRow.experiment == experiment, TaskRow.round <= round, TaskRow.kind == kind, TaskRow.state == LEASED)
        .values(state=CLOSED, verdict=ROLLED_BACK, finished_at=now)
    )


async def put_in_buffer(session: AsyncSession, task: str, round: int) -> None:
    """Say which round counts an accepted update."""
    await session.execute(update(TaskRow).where(TaskRow.id == task).values(buffer=round))


async def settle(session: AsyncSession, experiment: str, round: int, verdict: str) -> None:
    """Say what became of the training updates that an ended round had accepted."""
    await session.execute(
        update(TaskRow)
        .where(TaskRow.experiment == experiment, TaskRow.buffer == round, TaskRow.state == ACCEPTED)
        .values(verdict=verdict)
    )


async def pass_on(session: AsyncSession, experiment: str, round: int) -> None:
    """Let the next round count what this one had accepted."""
    await session.execute(
        update(TaskRow)
        .where(TaskRow.experiment == experiment, TaskRow.buffer == round, TaskRow.state == ACCEPTED)
        .values(buffer=round + 1)
    )


async def close_stale(session: AsyncSession, experiment: str, oldest: int, now: int) -> Sequence[TaskRow]:
    """Take back the training tasks, and drop the updates that wait, whose place is older than this. Returns them."""
    query = select(TaskRow).where(
        TaskRow.experiment == experiment,
        TaskRow.kind == "train",
        TaskRow.place < oldest,
        (TaskRow.state == LEASED) | ((TaskRow.state == ACCEPTED) & TaskRow.verdict.is_(None)),
    )
    rows = (await session.execute(query.order_by(TaskRow.id))).scalars().all()
    for row in rows:
        row.state, row.verdict, row.finished_at = STALE, ROLLED_BACK, now
        row.code = "stale_update"
    await session.flush()
    return rows


async def end_all(session: AsyncSession, experiment: str, round: int, now: int) -> None:
    """Leave nothing open of an experiment whose last round has ended: tasks that are out are closed, and updates that
    wait are dropped with that round.
    """
    for kind in ("train", "evaluate"):
        await session.execute(
            update(TaskRow)
            .where(TaskRow.experiment == experiment, TaskRow.kind == kind, TaskRow.state == LEASED)
            .values(state=CLOSED, verdict=ROLLED_BACK, finished_at=now)
        )
    await session.execute(
        update(TaskRow)
        .where(TaskRow.experiment == experiment, TaskRow.buffer > round)
        .values(buffer=round, verdict=ROLLED_BACK)
    )


async def waits(session: AsyncSession, experiment: str, device: str) -> bool:
    """Whether an update of this device is accepted and not settled yet."""
    query = select(TaskRow.id).where(
        TaskRow.device == device,
        TaskRow.experiment == experiment,
        TaskRow.kind == "train",
        TaskRow.state == ACCEPTED,
        TaskRow.verdict.is_(None),
    )
    return (await session.execute(query.limit(1))).first() is not None


async def accepted(session: AsyncSession, experiment: str, round: int) -> Sequence[TaskRow]:
    """The tasks whose updates a round counts, in the order of their ids: the order in which they are summed."""
    query = select(TaskRow).where(TaskRow.experiment == experiment, TaskRow.buffer == round, TaskRow.state == ACCEPTED)
    return (await session.execute(query.order_by(TaskRow.id))).scalars().all()


async def clients(session: AsyncSession, experiment: str, round: int, kind: str) -> int:
    """Of how many clients the tasks of this kind are that a round has handed out and not lost."""
    query = select(func.coalesce(func.sum(TaskRow.clients), 0)).where(
        TaskRow.experiment == experiment,
        TaskRow.round == round,
        TaskRow.kind == kind,
        TaskRow.state.in_((LEASED, ACCEPTED)),
    )
    return int((await session.execute(query)).scalar_one())


async def expired(session: AsyncSession, now: int) -> Sequence[TaskRow]:
    """The leased tasks whose lease has run out."""
    return (
        (await session.execute(select(TaskRow).where(TaskRow.state == LEASED, TaskRow.lease_until <= now)))
        .scalars()
        .all()
    )


async def next_expiry(session: AsyncSession) -> int | None:
    """When the first lease runs out."""
    return (await session.execute(_NEXT_EXPIRY)).scalar()


async def tried(session: AsyncSession, experiment: str, round: int, kind: str, device: str) -> Sequence[str]:
    """The states of the tasks of this kind that a device has had in a round."""
    named = {"of_experiment": experiment, "of_round": round, "of_kind": kind, "of_device": device}
    return (await session.execute(_TRIED, named)).scalars().all()


async def verdicts(session: AsyncSession, device: str, tasks: Sequence[str]) -> dict[str, str]:
    """What became of a device's tasks, as far as it is decided. A task that is not this device's is rolled back: it
    counts nowhere.
    """
    query = select(TaskRow.id, TaskRow.state, TaskRow.verdict).where(TaskRow.device == device, TaskRow.id.in_(tasks))
    rows = {row.id: (row.state, row.verdict) for row in await session.execute(query)}
    decided: dict[str, str] = {}
    for task in tasks:
        state, verdict = rows.get(task, (CLOSED, ROLLED_BACK))
        if verdict is not None:
            decided[task] = verdict
        elif state not in (LEASED, ACCEPTED):
            decided[task] = ROLLED_BACK
    return decided


async def bytes_up(session: AsyncSession, experiment: str, round: int) -> int:
    """The bytes of upload bodies that the tasks of a round have sent: those it counts, and of those it handed out the
    ones that no round counts.
    """
    query = select(func.coalesce(func.sum(TaskRow.bytes_up), 0)).where(
        TaskRow.experiment == experiment, func.coalesce(TaskRow.buffer, TaskRow.round) == round
    )
    return int((await session.execute(query)).scalar_one())


async def bytes_accepted(session: AsyncSession, experiment: str, round: int) -> int:
    """The sizes of the updates that a round has accepted, each once, however its body came."""
    query = select(func.sum(TaskRow.size)).where(
        TaskRow.experiment == experiment,
        func.coalesce(TaskRow.buffer, TaskRow.round) == round,
        TaskRow.state == ACCEPTED,
        TaskRow.upload.is_not(None),
    )
    return int((await session.execute(query)).scalar_one() or 0)


async def expire(session: AsyncSession, task: str, now: int, changes: Mapping[str, Any]) -> bool:
    """Take a task whose lease has run out from its device. False when its device was faster: it finished, or extended
    the lease.
    """
    result = await session.execute(
        update(TaskRow)
        .where(TaskRow.id == task, TaskRow.state == LEASED, TaskRow.lease_until <= now)
        .values(state=EXPIRED, **changes)
    )
    return cast("CursorResult[Any]", result).rowcount == 1


async def uploads(session: AsyncSession, experiment: str, round: int) -> Sequence[str]:
    """The digests of the update files that a round counted, or was to count."""
    query = select(TaskRow.upload).where(TaskRow.experiment == experiment, TaskRow.buffer == round)
    return [digest for digest in (await session.execute(query)).scalars() if digest is not None]


async def leased(session: AsyncSession) -> frozenset[str]:
    """The ids of all tasks that are out."""
    return frozenset((await session.execute(select(TaskRow.id).where(TaskRow.state == LEASED))).scalars())


async def live_uploads(session: AsyncSession) -> frozenset[str]:
    """The digests of the update files that are still needed: accepted, and the round that counts them not over; it may
    not have begun yet.
    """
    query = (
        select(TaskRow.upload)
        .outerjoin(RoundRow, (RoundRow.experiment == TaskRow.experiment) & (RoundRow.number == TaskRow.buffer))
        .where(TaskRow.state == ACCEPTED, TaskRow.buffer.is_not(None), RoundRow.cleaned.is_not(True))
    )
    return frozenset(digest for digest in (await session.execute(query)).scalars() if digest is not None)


async def reject(session: AsyncSession, task: str, code: str, detail: str) -> None:
    """Take an accepted update out of its round, because aggregating found it unusable. What its device has said of it
    stays.
    """
    await session.execute(
        update(TaskRow)
        .where(TaskRow.id == task, TaskRow.state == ACCEPTED)
        .values(
            state=REFUSED,
            verdict=ROLLED_BACK,
            code=func.coalesce(TaskRow.code, code),
            detail=func.coalesce(TaskRow.detail, detail),
        )
    )


async def note_dropout(session: AsyncSession, task: str, code: str, detail: str) -> bool:
    """Note why a device that has trained takes no further part in its attempt. False when it has said so before, when
    its masked vector is here, or when it has not trained or is out of it.
    """
    result = await session.execute(
        update(TaskRow)
        .where(TaskRow.id == task, TaskRow.state == ACCEPTED, TaskRow.attempt.is_not(None))
        .where(TaskRow.upload.is_(None), TaskRow.code.is_(None))
        .values(code=code, detail=detail)
    )
    return cast("CursorResult[Any]", result).rowcount == 1


async def reasons(session: AsyncSession, experiment: str, round: int) -> Mapping[str, int]:
    """Why devices gave up the tasks that a round handed out: how many for each reason, the most frequent first."""
    query = (
        select(TaskRow.code, func.count())
        .where(TaskRow.experiment == experiment, TaskRow.round == round, TaskRow.code.is_not(None))
        .where((TaskRow.state == ABORTED) | TaskRow.attempt.is_not(None), TaskRow.code.not_in(OF_ATTEMPTS))
        .group_by(TaskRow.code)
    )
    found = {str(code): int(count) for code, count in await session.execute(query)}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


async def progress(session: AsyncSession, task: str, size: int, until: int) -> bool:
    """Count the bytes of a part and extend the lease. False when the task is not leased any more."""
    result = await session.execute(
        update(TaskRow)
        .where(TaskRow.id == task, TaskRow.state == LEASED)
        .values(bytes_up=TaskRow.bytes_up + size, lease_until=until)
    )
    return cast("CursorResult[Any]", result).rowcount == 1


async def attach(session: AsyncSession, task: str, sha256: str, total: int, size: int) -> bool:
    """Note the masked vector of a task that has trained, of `total` bytes, `size` of them in the last part. False when
    it has one, or does not take part any more.
    """
    result = await session.execute(
        update(TaskRow)
        .where(TaskRow.id == task, TaskRow.state == ACCEPTED, TaskRow.upload.is_(None))
        .values(upload=sha256, size=total, bytes_up=TaskRow.bytes_up + size)
    )
    return cast("CursorResult[Any]", result).rowcount == 1


async def received(session: AsyncSession, task: str, size: int) -> bool:
    """Count the bytes of a part of a masked vector. False when the task has one, or does not take part any more."""
    result = await session.execute(
        update(TaskRow)
        .where(TaskRow.id == task, TaskRow.state == ACCEPTED, TaskRow.upload.is_(None))
        .values(bytes_up=TaskRow.bytes_up + size)
    )
    return cast("CursorResult[Any]", result).rowcount == 1


async def by_bucket(session: AsyncSession, experiment: str, round: int, kind: str) -> dict[int, int]:
    """How many tasks of this kind a round has out or accepted, by the group of their attempt."""
    query = (
        select(AttemptRow.bucket, func.count())
        .join(TaskRow, TaskRow.attempt == AttemptRow.id)
        .where(
            AttemptRow.experiment == experiment,
            AttemptRow.round == round,
            AttemptRow.kind == kind,
            TaskRow.state.in_((LEASED, ACCEPTED)),
        )
        .group_by(AttemptRow.bucket)
    )
    return {int(bucket): int(count) for bucket, count in await session.execute(query)}


async def settle_attempt(session: AsyncSession, attempt: str, verdict: str) -> None:
    """Say what became of the tasks of an attempt that are not settled yet."""
    await session.execute(
        update(TaskRow)
        .where(TaskRow.attempt == attempt, TaskRow.state == ACCEPTED, TaskRow.verdict.is_(None))
        .values(verdict=verdict)
    )


async def shorten_leases(session: AsyncSession, experiment: str, until: int) -> None:
    """End the leases of an experiment's tasks at this time, in milliseconds, where they would end later."""
    leased = (TaskRow.experiment == experiment, TaskRow.state == "leased", TaskRow.lease_until > until)
    await session.execute(update(TaskRow).where(*leased).values(lease_until=until))
