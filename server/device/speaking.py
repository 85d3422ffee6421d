"""A device says its message of a phase: checked by the attempt's machine, kept as one row for all its recipients."""

import asyncio

from coterie.protocol.canonical import canonical_json
from coterie.protocol.secagg import Agreement, Reveal, Shares
from coterie.server.auth.gate import SignedDevice
from coterie.server.coordinator import Coordinator
from coterie.server.device.attempt_states import awaited_place, differs, not_secure, unfit
from coterie.server.device.task_states import member
from coterie.server.device.waiting import Kept
from coterie.server.store import attempts, mailbox, nonces
from coterie.server.store.engine import can_wait


async def say(
    coordinator: Coordinator, device: SignedDevice, task: str, phase: str, message: Shares | Agreement | Reveal
) -> Kept:
    """Keep a message. The same message again changes nothing.

    Raises what `attempt_states` says, and errors.SecureAggregationRefused for a message that no honest client of this
    attempt sends.
    """
    bundle = canonical_json(message.model_dump(mode="json")).decode()
    async with coordinator.storage.database.read() as session:
        attempt = (await member(session, task, device.id)).attempt
        if attempt is None:
            raise not_secure()
        before = await mailbox.find(session, attempt.id, phase, task)
        machine = await coordinator.machines.of(session, attempt.id, attempt.version)
    if before is not None:
        return _same(attempt.id, before, bundle, phase)
    machine, place = awaited_place(attempt, machine, device.id, phase)
    await asyncio.to_thread(machine.check, place, message)
    turn = coordinator.signals.turns.next_turn(attempt.id)
    async with coordinator.storage.database.write("message") as session:
        await nonces.spend(session, device.nonce, device.nonce_expires)
        # Nobody moves the attempt on between this look and this message.
        current = await attempts.share_locked(session, attempt.id)
        refused = unfit(current, phase)
        before = await mailbox.find(session, attempt.id, phase, task)
        if before is not None:
            return _same(attempt.id, before, bundle, phase)
        if refused is not None:
            raise refused
        await mailbox.put(session, attempt.id, phase, task, bundle)
        if await mailbox.count(session, attempt.id, phase) < current.awaited:
            can_wait(session)
    coordinator.metrics.messages.labels(phase).inc()
    return Kept("accepted", attempt.id, turn)


def _same(attempt: str, before: str, bundle: str, phase: str) -> Kept:
    if before != bundle:
        raise differs(phase)
    return Kept("already", attempt)
