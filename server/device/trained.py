"""A device reports *trained*: it brings the keys of its attempt, and its round counts it."""

from coterie.privacy.secagg.roster import model_digest, verify_keys
from coterie.protocol.canonical import canonical_json
from coterie.protocol.device import Task
from coterie.protocol.secagg import AdvertiseKeys
from coterie.server.auth.gate import SignedDevice
from coterie.server.clock import now_ms
from coterie.server.coordinator import Coordinator
from coterie.server.device.acceptance import count
from coterie.server.device.attempt_states import differs, not_secure
from coterie.server.device.task_states import own, refusal
from coterie.server.device.waiting import Kept
from coterie.server.store import attempts, events, experiments, mailbox, nonces, participations, tasks


async def report(coordinator: Coordinator, device: SignedDevice, task: str, keys: AdvertiseKeys) -> Kept:
    """Take a task whose device has trained out of its lease, count it, and keep the keys, in one transaction.

    Raises errors.Unauthenticated (``signature_invalid``) for keys that the device did not sign for this task, Conflict
    ``not_secure`` and ``message_differs``, and what the task's state asks for.
    """
    async with coordinator.storage.database.read() as session:
        row = await own(session, task, device.id)
    message = Task.model_validate_json(row.message)
    if message.secure is None or row.attempt is None:
        raise not_secure()
    verify_keys(
        message.secure,
        plan=message.plan.id,
        model=model_digest(message),
        device=device.id,
        identity=device.public,
        keys=keys,
    )
    bundle = canonical_json(keys.model_dump(mode="json")).decode()
    changes = {"size": len(bundle), "sums": "{}", "finished_at": now_ms(), "verdict": None}
    data = {"round": row.round, "device": device.id, "task": row.id, "kind": row.kind, "attempt": row.attempt}
    turn = coordinator.signals.turns.next_turn(row.attempt)
    async with coordinator.storage.database.write("trained") as session:
        locked = await experiments.lock(session, row.experiment)
        await nonces.spend(session, device.nonce, device.nonce_expires)
        if not await tasks.leave(session, row.id, tasks.ACCEPTED, changes):
            before = await mailbox.find(session, row.attempt, attempts.KEYS, row.id)
            if before is None:
                raise refusal((await own(session, row.id, device.id)).state)
            if before != bundle:
                raise differs(attempts.KEYS)
            return Kept("already", row.attempt)
        await mailbox.put(session, row.attempt, attempts.KEYS, row.id, bundle)
        events.append(session, "task.trained", data, row.experiment)
        counts_in = await count(coordinator, session, locked, row, None)
        if row.kind == "train":
            now = now_ms()
            # How many examples it has, and its loss, are nobody's to know: it counts as one among equals.
            await participations.note(
                session,
                experiment=row.experiment,
                device=row.device,
                round=counts_in,
                examples=1,
                loss=None,
                seconds=(now - row.created_at) / 1000,
                now=now,
            )
    coordinator.metrics.updates.labels("trained").inc()
    return Kept("accepted", row.attempt, turn)
