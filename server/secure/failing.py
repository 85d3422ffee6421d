"""Moving an attempt on, or ending it without a sum: in the caller's transaction, and only if it is as it was seen."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.due import SUMS
from coterie.aggregation.engine import AggregateFailed, EvaluationSummed, RoundEvent, work_due
from coterie.server.clock import now_ms
from coterie.server.rounds.transitions import Rounds
from coterie.server.secure.machine import Failed
from coterie.server.store import attempts, events, mailbox, tasks
from coterie.server.store.attempts import AttemptStatus
from coterie.server.store.experiments import Locked


def event_fields(status: AttemptStatus) -> dict[str, Any]:
    """The fields that every event of an attempt has."""
    return {"attempt": status.id, "round": status.round, "kind": status.kind}


async def change_attempt(
    session: AsyncSession, status: AttemptStatus, changes: Mapping[str, Any], messages_read: int | None
) -> bool:
    """Change an attempt. False where it has moved on since it was read: then nothing changes.

    messages_read: how many messages of its phase the change counts on. One that came since is not lost: then nothing
        changes, and the phase is ended again with it.
    """
    row = await attempts.locked(session, status.id)
    if row.version != status.version:
        return False
    if messages_read is not None and messages_read != await mailbox.count(session, status.id, status.phase):
        return False
    return await attempts.move(session, status.id, status.version, changes)


async def end_without_sum(
    rounds: Rounds,
    session: AsyncSession,
    locked: Locked,
    status: AttemptStatus,
    failed: Failed,
    messages_read: int | None = None,
) -> bool:
    """End an attempt without a sum: its clients drop out by name, and where it was the last of its round, that ends.

    False where the attempt has moved on, and nothing has changed.
    locked: its experiment.
    messages_read: as in `change_attempt`.
    """
    changes = {
        "phase": attempts.FAILED,
        "state": None,
        "deadline_at": None,
        "cause": failed.cause,
        "detail": failed.detail[:2000],
        "finished_at": now_ms(),
    }
    if not await change_attempt(session, status, changes, messages_read):
        return False
    for member in await attempts.members(session, status.id):
        await tasks.reject(session, member.id, tasks.ATTEMPT_FAILED, failed.detail[:2000])
    data = event_fields(status) | {"cause": failed.cause, "detail": failed.detail}
    events.append(session, "attempt.failed", data, status.experiment)
    all_of_it = await attempts.of_round(session, status.experiment, status.round, status.kind)
    if all(row.phase == attempts.FAILED for row in all_of_it):
        await _give_up(rounds, session, locked, status, failed)
    return True


async def _give_up(
    rounds: Rounds, session: AsyncSession, locked: Locked, status: AttemptStatus, failed: Failed
) -> None:
    opened = locked.opened
    if opened is None or opened.row.number != status.round:
        return
    work = work_due(opened.value)
    if work is None or SUMS.get(work) != status.kind:
        return
    detail = f"secure aggregation failed ({failed.cause}): {failed.detail}"
    event: RoundEvent = AggregateFailed(detail) if status.kind == "train" else EvaluationSummed(None, detail)
    await rounds.apply(session, locked.experiment, opened, event)
