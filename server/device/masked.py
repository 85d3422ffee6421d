"""Accepting a masked vector: it has exactly the size and the header that its attempt asks for, and is made durable;
what is in it nobody can see.
"""

import asyncio

from coterie.errors import Conflict, CoterieError
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.masked_file import MaskedHeader, read_masked
from coterie.protocol.canonical import canonical_json
from coterie.protocol.device import Task
from coterie.protocol.secagg import SecureTerms
from coterie.server.auth.gate import SignedDevice
from coterie.server.coordinator import Coordinator
from coterie.server.device.attempt_states import awaited_place, differs, not_in_roster, unfit
from coterie.server.device.task_states import member, own, refusal
from coterie.server.device.waiting import Kept
from coterie.server.store import attempts, events, mailbox, nonces, tasks
from coterie.server.store.engine import can_wait
from coterie.server.store.received import Received
from coterie.server.store.tables import TaskRow

PHASE = "masked"


def awaits_vector(row: TaskRow) -> bool:
    """Whether a task has trained and its masked vector is not here yet."""
    return row.attempt is not None and row.state == tasks.ACCEPTED and row.upload is None


def keys_first() -> CoterieError:
    """The refusal of an update in clear, or of a masked one before its time."""
    return Conflict(
        "The update of this task is masked, and this device has not brought its keys yet.",
        hint="POST …/secure/keys first; never send the update in clear.",
        code="phase_early",
    )


def expected_header(terms: SecureTerms, message: Task) -> MaskedHeader:
    """What the file of a task's masked vector must say of itself."""
    return MaskedHeader(
        attempt=terms.attempt,
        task=message.id,
        plan=message.plan.id,
        base=message.model.sha256,
        spec=vector_spec(terms.sections).digest,
    )


async def keep_part(coordinator: Coordinator, device: SignedDevice, row: TaskRow, size: int) -> None:
    """Note a part that is not the last: its bytes and its nonce."""
    async with coordinator.storage.database.write("part") as session:
        can_wait(session)
        await nonces.spend(session, device.nonce, device.nonce_expires)
        refused = unfit(await attempts.share_locked(session, row.attempt or ""), PHASE)
        if refused is None and not await tasks.received(session, row.id, size):
            refused = refusal((await own(session, row.id, device.id)).state)
        if refused is not None:
            await coordinator.storage.blobs.parts.drop(row.id)
            raise refused


async def accept(
    coordinator: Coordinator, device: SignedDevice, row: TaskRow, message: Task, whole: Received, size: int
) -> Kept:
    """Take the masked vector into the attempt's sum, exactly once: ``already`` when these very bytes are in it.

    size: the bytes of this request. Raises UpdateRefused for a file of another form, after which the right one can
    still be sent; what `attempt_states` says; errors.StorageError.
    """
    if message.secure is None:
        raise not_in_roster()
    async with coordinator.storage.database.read() as session:
        attempt = (await member(session, row.id, device.id)).attempt
        machine = None if attempt is None else await coordinator.machines.of(session, attempt.id, attempt.version)
    if attempt is None:
        raise not_in_roster()
    awaited_place(attempt, machine, device.id, PHASE)
    spec = vector_spec(message.secure.sections)
    # Read whole, so that no vector can spoil the sum when it is made.
    await asyncio.to_thread(read_masked, whole.path, expected_header(message.secure, message), spec)
    sha256, total = whole.sha256, whole.size
    await coordinator.storage.blobs.keep("updates", whole, point="masked")
    turn = coordinator.signals.turns.next_turn(attempt.id)
    try:
        async with coordinator.storage.database.write("masked") as session:
            await nonces.spend(session, device.nonce, device.nonce_expires)
            current = await attempts.share_locked(session, attempt.id)
            refused = unfit(current, PHASE)
            if not await tasks.attach(session, row.id, sha256, total, size):
                return _twice(await own(session, row.id, device.id), attempt.id, sha256)
            if refused is not None:
                raise refused
            bundle = canonical_json({"sha256": sha256, "size": total}).decode()
            await mailbox.put(session, attempt.id, PHASE, row.id, bundle)
            if await mailbox.count(session, attempt.id, PHASE) < current.awaited:
                can_wait(session)
            data = {"round": row.round, "device": device.id, "task": row.id, "kind": row.kind, "size": total}
            events.append(session, "update.masked", {**data, "attempt": attempt.id}, row.experiment)
    except CoterieError:
        await _drop_unmentioned(coordinator, device, row, sha256)
        raise
    coordinator.metrics.updates.labels("masked").inc()
    coordinator.metrics.messages.labels(PHASE).inc()
    return Kept("accepted", attempt.id, turn)


def _twice(row: TaskRow, attempt: str, sha256: str) -> Kept:
    if row.state == tasks.ACCEPTED and row.upload == sha256:
        return Kept("already", attempt)
    if row.state == tasks.ACCEPTED:
        raise differs(PHASE)
    raise refusal(row.state)


async def _drop_unmentioned(coordinator: Coordinator, device: SignedDevice, row: TaskRow, sha256: str) -> None:
    """Delete a vector that was made durable while its phase ended; no other task's file has these bytes, since they
    hold the task's id.
    """
    async with coordinator.storage.database.read() as session:
        mentioned = (await own(session, row.id, device.id)).upload == sha256
    if not mentioned:
        await coordinator.storage.blobs.delete("updates", [sha256])
