"""Accepting an update: check it, make it durable, count it; or refuse it by name and let the round know."""

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.engine import EvaluationAccepted, UpdateAccepted, counted_in
from coterie.aggregation.evaluate import read_evaluation
from coterie.aggregation.fold.usable import CountTerms, count_terms, usable
from coterie.aggregation.plan.manifest import METRICS, Manifest
from coterie.aggregation.private.secure_aggregation import coordinator_noises
from coterie.aggregation.reducers.text import reducer
from coterie.errors import CoterieError, InternalError, UpdateRefused
from coterie.protocol.device import Task
from coterie.protocol.metrics import EXAMPLES, MetricSums
from coterie.protocol.update import Update, UpdateLimits, read_update
from coterie.server.auth.gate import SignedDevice
from coterie.server.clock import now_ms
from coterie.server.coordinator import Coordinator
from coterie.server.device.task_states import own, refusal
from coterie.server.rounds.spending import privacy_of
from coterie.server.rounds.transitions import awaits
from coterie.server.store import events, experiments, nonces, participations, tasks, upstream
from coterie.server.store.engine import can_wait
from coterie.server.store.experiments import Locked
from coterie.server.store.received import Received
from coterie.server.store.tables import TaskRow


def check(path: Path, manifest: Manifest, message: Task, terms: CountTerms) -> Update:
    """The update, if it may enter the aggregate of its round. Raises UpdateRefused with the cause as its code.

    Where the coordinator noises the sum, values that cannot be used and no weight are no cause: a refusal would tell of
    a device's rows what the noise is to hide.
    terms: those on which the round counts it.
    """
    limits = UpdateLimits(
        max_bytes=message.upload_limit,
        max_weight=message.weight_cap,
        codecs=frozenset(message.codecs),
        kinds=frozenset({"accumulator" if message.edge else "update"}),
        min_clients=message.edge.min_clients if message.edge else 1,
        max_clients=message.edge.max_clients if message.edge else 1,
    )
    sections = manifest.sections_for(message.kind)
    update = read_update(
        path, sections, task=message.id, plan=message.plan.id, base=message.model.sha256, limits=limits
    )
    if message.kind == "train":
        usable(update, terms)
    else:
        update.check_finite()
    return update


async def _terms(coordinator: Coordinator, row: TaskRow, message: Task) -> CountTerms:
    """On what terms the round of a task counts an update: the rules with which its job reads it again."""
    async with coordinator.storage.database.read() as session:
        experiment = await experiments.find(session, row.experiment)
        mirrored = await upstream.mirrored(session, row.experiment)
    if experiment is None:
        raise InternalError(f"The task {row.id} has no experiment.")
    request = experiments.request_of(experiment)
    terms = count_terms(
        reducer(request.reducer),
        weight_cap=message.weight_cap,
        hidden=coordinator_noises(privacy_of(request)),
        in_tree=mirrored,
    )
    return replace(terms, keep=False)


def metric_sums(update: Update, manifest: Manifest, message: Task) -> MetricSums:
    """The sums that an evaluation reports, with a bounded say."""
    return read_evaluation(manifest, update, weight_cap=message.weight_cap)


def training_loss(update: Update, manifest: Manifest) -> float | None:
    """The mean loss that a training update reports; None when its plan measures none, or it is no number."""
    if not {EXAMPLES, "loss"} <= set(manifest.metrics):
        return None
    sums = dict(zip(manifest.metrics, update.decode(METRICS).tolist(), strict=False))
    loss = sums["loss"] / sums[EXAMPLES] if sums[EXAMPLES] > 0 else math.inf
    return loss if math.isfinite(loss) else None


async def keep_part(coordinator: Coordinator, device: SignedDevice, row: TaskRow, message: Task, size: int) -> None:
    """Note a part that is not the last: its bytes, its nonce, and that the device is still at it."""
    async with coordinator.storage.database.write("part") as session:
        can_wait(session)
        await nonces.spend(session, device.nonce, device.nonce_expires)
        if not await tasks.progress(session, row.id, size, max(row.lease_until, now_ms() + message.lease_ms)):
            await coordinator.storage.blobs.parts.drop(row.id)
            raise refusal((await own(session, row.id, device.id)).state)


async def accept(
    coordinator: Coordinator, device: SignedDevice, row: TaskRow, message: Task, whole: Received, size: int
) -> Literal["accepted", "already"]:
    """Count the update exactly once. Returns ``already`` when these very bytes were counted before.

    size: the bytes of this request. Raises UpdateRefused after having noted the refusal, or what the task's state asks
    for.
    """
    manifest = await coordinator.storage.plans.manifest(message.plan.id)
    try:
        terms = await _terms(coordinator, row, message)
        update = await asyncio.to_thread(check, whole.path, manifest, message, terms)
        sums = metric_sums(update, manifest, message) if message.kind == "evaluate" else None
        # A loss that a promise of privacy is about is nothing to remember a device by.
        measured = message.kind == "train" and message.privacy is None
        loss = training_loss(update, manifest) if measured else None
    except UpdateRefused as error:
        coordinator.metrics.updates.labels(error.reason).inc()
        await _refuse(coordinator, device, row, error, size)
        raise
    sha256, total = whole.sha256, whole.size
    if message.kind == "train":
        await coordinator.storage.blobs.keep("updates", whole, point="update")
    changes = {
        "upload": sha256,
        "size": total,
        "weight": update.header.weight,
        "clients": update.header.clients,
        "steps": update.header.steps,
        "sums": json.dumps(dict(sums.sums) if sums else {} if loss is None else {"loss": loss}),
        "bytes_up": TaskRow.bytes_up + size,
        "finished_at": now_ms(),
        "verdict": tasks.COUNTED if sums else None,
    }
    data = {
        "round": row.round,
        "device": device.id,
        "task": row.id,
        "kind": row.kind,
        "size": total,
        "weight": update.header.weight,
        "clients": update.header.clients,
    }
    try:
        async with coordinator.storage.database.write("accept") as session:
            locked = await experiments.lock(session, row.experiment)
            await nonces.spend(session, device.nonce, device.nonce_expires)
            if not await tasks.leave(session, row.id, tasks.ACCEPTED, changes):
                return _twice(await own(session, row.id, device.id), sha256)
            events.append(session, "update.accepted", data, row.experiment)
            counts_in = await count(coordinator, session, locked, row, sums)
            if message.kind == "train":
                await _remember(session, row, counts_in, update.header.weight, loss)
    except CoterieError:
        await _drop_unmentioned(coordinator, device, row, sha256)
        raise
    coordinator.metrics.updates.labels("accepted").inc()
    return "accepted"


async def _remember(session: AsyncSession, row: TaskRow, round: int, examples: int, loss: float | None) -> None:
    """What selection may know of this device from now on.

    round: the one that counts its update.
    """
    now = now_ms()
    await participations.note(
        session,
        experiment=row.experiment,
        device=row.device,
        round=round,
        examples=examples,
        loss=loss,
        seconds=(now - row.created_at) / 1000,
        now=now,
    )


async def _drop_unmentioned(coordinator: Coordinator, device: SignedDevice, row: TaskRow, sha256: str) -> None:
    """Delete an update file that was made durable while its round ended; nobody else's update has these bytes, since
    they hold the task's id.
    """
    async with coordinator.storage.database.read() as session:
        mentioned = (await own(session, row.id, device.id)).upload == sha256
    if row.kind == "train" and not mentioned:
        await coordinator.storage.blobs.delete("updates", [sha256])


def _twice(row: TaskRow, sha256: str) -> Literal["already"]:
    if row.state == tasks.ACCEPTED and row.upload == sha256:
        return "already"
    raise refusal(row.state)


async def _refuse(
    coordinator: Coordinator, device: SignedDevice, row: TaskRow, error: UpdateRefused, size: int
) -> None:
    async with coordinator.storage.database.write("refuse") as session:
        locked = await experiments.lock(session, row.experiment)
        await nonces.spend(session, device.nonce, device.nonce_expires)
        changes = {
            "code": error.reason[:64],
            "detail": error.message[:2000],
            "verdict": tasks.ROLLED_BACK,
            "bytes_up": TaskRow.bytes_up + size,
            "finished_at": now_ms(),
        }
        if not await tasks.leave(session, row.id, tasks.REFUSED, changes):
            raise refusal((await own(session, row.id, device.id)).state)
        data = {"round": row.round, "device": device.id, "task": row.id, "kind": row.kind, "code": error.reason}
        events.append(session, "update.refused", data, row.experiment)
        await coordinator.rounds.lost(session, locked, row)


async def count(
    coordinator: Coordinator, session: AsyncSession, locked: Locked, row: TaskRow, sums: MetricSums | None
) -> int:
    """Step the round of a task that has just left ``leased``: rows and engine change together or not at all. Returns
    the number of the round that counts it.

    sums: what an evaluation reports; None where that is masked, and of a training task.
    An update that comes while a buffered round is made into a version counts in the next one.
    """
    experiment, opened = locked.experiment, locked.opened
    if opened is None or not awaits(opened, row):
        raise refusal(tasks.CLOSED)
    if row.kind == "evaluate":
        event = EvaluationAccepted(sums.sums if sums else {})
        after = await coordinator.rounds.apply(session, experiment, opened, event)
        counts_in = row.round
    else:
        counts_in = counted_in(opened.value)
        await tasks.put_in_buffer(session, row.id, counts_in)
        after = await coordinator.rounds.apply(session, experiment, opened, UpdateAccepted(row.place))
    if after is not None and after.row is opened.row and after.value.phase is opened.value.phase:
        can_wait(session)
    return counts_in
