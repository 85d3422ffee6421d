"""Attempts at secure aggregation as rows. Every change is one conditional UPDATE on the row's version.

gathering ──► shares ──► masked ──► [agreement ──►] reveal ──► unmasking ──► summed
    └────────────┴──────────┴─────────────┴────────────┴────────────┴──────► failed, with a cause

gathering: the clients that report *trained* leave their keys; the phases between are those of the machine
(`coterie.privacy.secagg.server`), each named after what it waits for; unmasking: all that is needed is here, and a
worker makes the sum. What has arrived in a phase is in the mailbox, so that a message costs one row and no attempt's
state is written more often than its phase changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from sqlalchemy import CursorResult, Table, bindparam, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import InternalError
from coterie.protocol import ids
from coterie.server.clock import now_ms
from coterie.server.store.tables import AttemptRow, MailboxRow, TaskRow

GATHERING: Final = "gathering"
UNMASKING: Final = "unmasking"
SUMMED: Final = "summed"
FAILED: Final = "failed"
OVER: Final = (SUMMED, FAILED)
KEYS: Final = "keys"
"""The phase of the mailbox in which clients leave their keys while the attempt gathers."""
_ARRIVED: Final = (
    select(func.count())
    .select_from(MailboxRow)
    .where(MailboxRow.session == AttemptRow.id, MailboxRow.stage == AttemptRow.phase)
    .scalar_subquery()
)

# Built once: the driver asks after every commit, and each message of a client twice.
_UNDER_WAY: Final = (
    select(
        AttemptRow.id,
        AttemptRow.experiment,
        AttemptRow.round,
        AttemptRow.kind,
        AttemptRow.phase,
        AttemptRow.deadline_at,
        AttemptRow.version,
        AttemptRow.awaited,
        _ARRIVED.label("arrived"),
    )
    .where(AttemptRow.phase.not_in(OVER))
    .order_by(AttemptRow.created_at, AttemptRow.id)
)
_LOCKED: Final = select(AttemptRow).where(AttemptRow.id == bindparam("attempt")).with_for_update()


class AttemptPhase(NamedTuple):
    """Where an attempt is, as a message of a client needs it: plain columns, since each message asks several times."""

    id: str
    phase: str
    version: int
    awaited: int
    cause: str | None
    detail: str | None


class Member(NamedTuple):
    """A task in secure aggregation.

    state: of the task.
    attempt: None where its update comes in clear.
    """

    state: str
    attempt: AttemptPhase | None


_TASKS: Final = cast("Table", TaskRow.__table__)
_ATTEMPTS: Final = cast("Table", AttemptRow.__table__)
_PHASE: Final = tuple(_ATTEMPTS.c[name] for name in AttemptPhase._fields)
_SHARED: Final = select(*_PHASE).where(_ATTEMPTS.c.id == bindparam("attempt")).with_for_update(read=True)
_OWN: Final = (_TASKS.c.id == bindparam("task"), _TASKS.c.device == bindparam("device"))
_NAME_OF: Final = select(_TASKS.c.attempt).where(*_OWN)
_MEMBER: Final = (
    select(_TASKS.c.state, *_PHASE)
    .select_from(_TASKS.outerjoin(_ATTEMPTS, _ATTEMPTS.c.id == _TASKS.c.attempt))
    .where(*_OWN)
)


@dataclass(frozen=True)
class AttemptStatus:
    """Where an attempt is, without its state.

    arrived: how many of the awaited messages of its phase are here.
    """

    id: str
    experiment: str
    round: int
    kind: str
    phase: str
    deadline_at: int | None
    version: int
    awaited: int
    arrived: int

    def due(self, now: int) -> bool:
        """Whether its phase has nothing more to wait for."""
        return self.arrived >= self.awaited or (self.deadline_at is not None and self.deadline_at <= now)


async def join(session: AsyncSession, experiment: str, round: int, kind: str, bucket: int = 0) -> AttemptRow:
    """The attempt of this round's tasks of this kind, made by the first of them."""
    query = select(AttemptRow).where(
        AttemptRow.experiment == experiment,
        AttemptRow.round == round,
        AttemptRow.kind == kind,
        AttemptRow.bucket == bucket,
    )
    row = (await session.execute(query)).scalar_one_or_none()
    if row is None:
        row = AttemptRow(
            id=ids.new_id(ids.ATTEMPT),
            experiment=experiment,
            round=round,
            kind=kind,
            bucket=bucket,
            phase=GATHERING,
            awaited=0,
            clients=0,
            survivors=0,
            version=0,
            created_at=now_ms(),
        )
        session.add(row)
        await session.flush()
    return row


async def find(session: AsyncSession, attempt: str) -> AttemptRow | None:
    """The attempt of this id."""
    return await session.get(AttemptRow, attempt)


async def name_of(session: AsyncSession, task: str, device: str) -> str | None:
    """The id of the attempt of a device's own task; None where it has none, or is unknown."""
    return (await session.execute(_NAME_OF, {"task": task, "device": device})).scalar_one_or_none()


async def member(session: AsyncSession, task: str, device: str) -> Member | None:
    """A device's own task and its attempt, for reading them; another device's task is as good as unknown."""
    row = (await session.execute(_MEMBER, {"task": task, "device": device})).one_or_none()
    if row is None:
        return None
    state, *phase = row
    return Member(state, None if phase[0] is None else AttemptPhase(*phase))


async def share_locked(session: AsyncSession, attempt: str) -> AttemptPhase:
    """The attempt, of which this writing transaction needs that its phase stays what it is."""
    row = (await session.execute(_SHARED, {"attempt": attempt})).one_or_none()
    if row is None:
        raise _lost(attempt)
    return AttemptPhase(*row)


async def locked(session: AsyncSession, attempt: str) -> AttemptRow:
    """The attempt for changing it. Of two that hold it and then change it each would wait for the other."""
    row = (await session.execute(_LOCKED, {"attempt": attempt})).scalar_one_or_none()
    if row is None:
        raise _lost(attempt)
    return row


def _lost(attempt: str) -> InternalError:
    return InternalError(f"The attempt {attempt} has no row.")


async def of_round(session: AsyncSession, experiment: str, round: int, kind: str | None = None) -> Sequence[AttemptRow]:
    """A round's attempts, by kind and bucket."""
    query = select(AttemptRow).where(AttemptRow.experiment == experiment, AttemptRow.round == round)
    if kind is not None:
        query = query.where(AttemptRow.kind == kind)
    # Conditional updates pass by what this session has read before.
    query = query.order_by(AttemptRow.kind, AttemptRow.bucket).execution_options(populate_existing=True)
    return (await session.execute(query)).scalars().all()


async def under_way(session: AsyncSession) -> Sequence[AttemptStatus]:
    """Every attempt that is not over."""
    return [AttemptStatus(*row) for row in await session.execute(_UNDER_WAY)]


async def move(session: AsyncSession, attempt: str, version: int, changes: Mapping[str, Any]) -> bool:
    """Change an attempt that is still what it was at this version. False when it is not; then nothing changed."""
    result = await session.execute(
        update(AttemptRow)
        .where(AttemptRow.id == attempt, AttemptRow.version == version, AttemptRow.phase.not_in(OVER))
        .values(version=version + 1, **changes)
        .execution_options(synchronize_session=False)
    )
    return cast("CursorResult[Any]", result).rowcount == 1


async def end_all(session: AsyncSession, experiment: str, round: int, cause: str, detail: str) -> Sequence[AttemptRow]:
    """Fail every attempt of a round that is over. Returns those that were not; those that had begun have clients."""
    rows = [row for row in await of_round(session, experiment, round) if row.phase not in OVER]
    for row in rows:
        row.phase, row.cause, row.detail = FAILED, cause, detail
        row.state, row.deadline_at, row.finished_at, row.version = None, None, now_ms(), row.version + 1
    await session.flush()
    return rows


async def forget(session: AsyncSession, experiment: str, round: int) -> None:
    """Leave nothing of a round's attempts but their rows: what clients left, and the machines' states, go."""
    named = select(AttemptRow.id).where(AttemptRow.experiment == experiment, AttemptRow.round == round)
    await session.execute(delete(MailboxRow).where(MailboxRow.session.in_(named)))
    await session.execute(
        update(AttemptRow).where(AttemptRow.experiment == experiment, AttemptRow.round == round).values(state=None)
    )


async def members(session: AsyncSession, attempt: str) -> Sequence[TaskRow]:
    """The tasks of an attempt whose devices reported *trained*, in the order of their ids."""
    query = select(TaskRow).where(TaskRow.attempt == attempt, TaskRow.state == "accepted")
    return (await session.execute(query.order_by(TaskRow.id))).scalars().all()


async def masked_uploads(session: AsyncSession, experiment: str, round: int) -> Sequence[str]:
    """The digests of the masked vectors that a round's attempts were sent."""
    query = (
        select(TaskRow.upload)
        .join(AttemptRow, AttemptRow.id == TaskRow.attempt)
        .where(AttemptRow.experiment == experiment, AttemptRow.round == round, TaskRow.upload.is_not(None))
    )
    return [digest for digest in (await session.execute(query)).scalars() if digest is not None]


async def live_uploads(session: AsyncSession) -> frozenset[str]:
    """The digests of the masked vectors of attempts that are not over."""
    query = (
        select(TaskRow.upload)
        .join(AttemptRow, AttemptRow.id == TaskRow.attempt)
        .where(AttemptRow.phase.not_in(OVER), TaskRow.upload.is_not(None))
    )
    return frozenset(digest for digest in (await session.execute(query)).scalars() if digest is not None)


async def state_of(session: AsyncSession, attempt: str) -> tuple[int, str] | None:
    """The attempt's machine as it was when its phase began, as JSON, after the version of the row that it is of; None
    before there is a roster, and when the attempt is over.
    """
    query = select(AttemptRow.version, AttemptRow.state).where(AttemptRow.id == attempt)
    row = (await session.execute(query)).one_or_none()
    return None if row is None or row.state is None else (row.version, row.state)


async def uploading(session: AsyncSession) -> frozenset[str]:
    """The tasks of attempts that are not over whose masked vectors may still come."""
    query = (
        select(TaskRow.id)
        .join(AttemptRow, AttemptRow.id == TaskRow.attempt)
        .where(AttemptRow.phase.not_in(OVER), TaskRow.state == "accepted", TaskRow.upload.is_(None))
    )
    return frozenset((await session.execute(query)).scalars())


async def devices_of(session: AsyncSession, attempt: str) -> dict[str, str]:
    """The devices of an attempt's tasks."""
    query = select(TaskRow.id, TaskRow.device).where(TaskRow.attempt == attempt)
    return {row.id: row.device for row in await session.execute(query)}
