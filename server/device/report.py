"""What a device says about a task it holds: still at it, or giving it up."""

from typing import Final

from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import Gone
from coterie.protocol.device import WITH_ROWS, Abort, Progress, Task
from coterie.protocol.wire import Milliseconds
from coterie.server.auth.gate import OpenCoordinator, SignedDevice, SigningDevice, gated_router
from coterie.server.clock import now_ms
from coterie.server.device.task_states import check_leased, experiment_of, own, refusal
from coterie.server.paths import TaskPath
from coterie.server.store import events, experiments, nonces, tasks
from coterie.server.store.engine import can_wait
from coterie.server.store.tables import TaskRow

router = gated_router("device")
WITHHELD: Final = "withheld"
"""Stands for the phase and the code of what rows may have to do with, under a promise of privacy."""


class LeaseLeft(BaseModel):
    """How long the lease lasts now."""

    lease_ms: Milliseconds


@router.post(
    "/v1/device/tasks/{task}/progress", operation_id="reportProgress", summary="Report progress and extend the lease"
)
async def progress(task: TaskPath, body: Progress, coordinator: OpenCoordinator, device: SigningDevice) -> LeaseLeft:
    """The lease starts anew. A round's deadline is not moved by it."""
    async with coordinator.storage.database.write("progress") as session:
        can_wait(session)
        row = await own(session, task, device.id)
        check_leased(row)
        await nonces.spend(session, device.nonce, device.nonce_expires)
        lease_ms = Task.model_validate_json(row.message).lease_ms
        if not await tasks.extend(session, row.id, now_ms() + lease_ms):
            raise Gone("The lease of this task is over.", hint="Check in for another one.", code="lease_expired")
    return LeaseLeft(lease_ms=lease_ms)


@router.post("/v1/device/tasks/{task}/abort", operation_id="abortTask", status_code=204, summary="Give the task up")
async def abort(task: TaskPath, body: Abort, coordinator: OpenCoordinator, device: SigningDevice) -> None:
    """The slot is offered to another device at once. Doing it twice is harmless."""
    async with coordinator.storage.database.write("abort") as session:
        locked = await experiments.lock(session, await experiment_of(session, task, device.id))
        row = await own(session, task, device.id)
        if row.state == tasks.ABORTED or await _out_of_attempt(session, device, row, body):
            return
        check_leased(row)
        await nonces.spend(session, device.nonce, device.nonce_expires)
        code, detail = _code_and_detail(row, body)
        changes = {"code": code, "detail": detail, "verdict": tasks.ROLLED_BACK, "finished_at": now_ms()}
        if not await tasks.leave(session, row.id, tasks.ABORTED, changes):
            raise refusal(tasks.CLOSED)
        _tell(session, row, body)
        await coordinator.rounds.lost(session, locked, row)
    await coordinator.storage.blobs.parts.drop(task)


async def _out_of_attempt(session: AsyncSession, device: SignedDevice, row: TaskRow, body: Abort) -> bool:
    """Whether the task has trained and its device says that it does not go on in the attempt. Its round has counted it,
    and its attempt misses it when the phase ends; but why is known now.
    """
    if row.state != tasks.ACCEPTED or row.attempt is None or row.upload is not None:
        return False
    await nonces.spend(session, device.nonce, device.nonce_expires)
    if await tasks.note_dropout(session, row.id, *_code_and_detail(row, body)):
        _tell(session, row, body)
    return True


def _is_withheld(row: TaskRow, body: Abort) -> bool:
    """Whether what is said may depend on rows that the task's promise of privacy hides. Devices do not say it; if one
    does, it goes no further.
    """
    return body.phase in WITH_ROWS and Task.model_validate_json(row.message).privacy is not None


def _code_and_detail(row: TaskRow, body: Abort) -> tuple[str, str]:
    """The code and the words that are kept of it."""
    return (WITHHELD, "") if _is_withheld(row, body) else (body.code, body.detail)


def _tell(session: AsyncSession, row: TaskRow, body: Abort) -> None:
    data = {
        "round": row.round,
        "task": row.id,
        "device": row.device,
        "kind": row.kind,
        "phase": WITHHELD if _is_withheld(row, body) else body.phase,
        "code": _code_and_detail(row, body)[0],
    }
    events.append(session, "task.aborted", data, row.experiment)
