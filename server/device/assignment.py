"""Which task a device gets: the one it holds, or a new one of a round with a free slot, or none."""

from functools import partial
from typing import Literal

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.eligibility import eligible, keeps_last_slot, may_try, measures
from coterie.aggregation.engine import EvaluationLeased, TaskLeased, open_slots
from coterie.aggregation.plan.needs import Needs
from coterie.aggregation.private.local_noise import local_terms
from coterie.errors import Conflict
from coterie.protocol import ids
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.control import ExperimentCreate
from coterie.protocol.device import BlobRef, Task, TaskKind
from coterie.server.clock import now_ms
from coterie.server.coordinator import Coordinator
from coterie.server.device.limits import masked_limit, upload_limit
from coterie.server.device.secure_terms import joined
from coterie.server.rounds.asking import KINDS, Asker, within_reach
from coterie.server.rounds.edge_terms import edge_terms, fits, with_time_left
from coterie.server.rounds.eligibility import contribution, holdings, outcomes
from coterie.server.rounds.reservations import kept_for_others
from coterie.server.rounds.spending import privacy_of
from coterie.server.store import blob_rows, events, experiments, nonces, participations, tasks
from coterie.server.store.engine import can_wait
from coterie.server.store.experiments import OpenRound
from coterie.server.store.tables import ExperimentRow, TaskRow


def repeat(coordinator: Coordinator, row: TaskRow) -> Task:
    """The task that a device holds already, with what is left of its lease."""
    return Task.model_validate(with_time_left(row)).signed(coordinator.identity.key)


async def candidates(coordinator: Coordinator, session: AsyncSession, asker: Asker) -> list[tuple[str, TaskKind]]:
    """The experiments that have a task for this device now, those whose round began first leading."""
    found: list[tuple[str, TaskKind]] = []
    for opened in await experiments.open_rounds(session, asker.population):
        if opened.row.experiment in coordinator.board.quarantined:
            continue
        for kind in KINDS:
            if open_slots(opened.value, kind) and await _may_take(coordinator, session, opened, kind, asker):
                found.append((opened.row.experiment, kind))
    return found


async def _may_take(
    coordinator: Coordinator, session: AsyncSession, opened: OpenRound, kind: TaskKind, asker: Asker
) -> bool:
    experiment = await experiments.find(session, opened.row.experiment)
    if experiment is None:
        return False
    request = experiments.request_of(experiment)
    if not within_reach(request, Needs.of(await coordinator.storage.plans.manifest(experiment.plan)), kind, asker):
        return False
    privacy = privacy_of(request)
    tried = await tasks.tried(session, experiment.id, opened.row.number, kind, asker.id)
    waits = opened.value.config.buffered and await tasks.waits(session, experiment.id, asker.id)
    if not may_try(outcomes(tried), kind, privacy, in_buffer=waits):
        return False
    if not await fits(session, opened, kind, asker.clients):
        return False
    return asker.clients is not None or await _chosen(session, opened, kind, asker, request)


async def _chosen(
    session: AsyncSession, opened: OpenRound, kind: TaskKind, asker: Asker, request: ExperimentCreate
) -> bool:
    """Whether a device is eligible, and the round's tasks are not kept for others. An edge aggregator's devices answer
    to the edge, so neither is asked of it.
    """
    policy = request.rounds
    if measures(policy, kind):
        return True
    now, number = now_ms(), opened.value.number
    past = contribution(await participations.find(session, opened.row.experiment, asker.id), now)
    if not eligible(policy, partial(holdings, asker.data), past, round=number, privacy=privacy_of(request)):
        return False
    if policy.trusted is not None:
        if asker.id == policy.trusted:
            return True
        tried = await tasks.tried(session, opened.row.experiment, number, "train", policy.trusted)
        if keeps_last_slot(policy.trusted, asker.id, open_slots(opened.value, kind), outcomes(tried)):
            return False
    return not kept_for_others(opened.row, asker.id, now)


async def lease(coordinator: Coordinator, asker: Asker, experiment: str, kind: TaskKind) -> Task | None:
    """Lease a task of this experiment to the device, in one transaction. None when somebody else took the last slot."""
    try:
        async with coordinator.storage.database.write("lease") as session:
            locked = await experiments.lock(session, experiment)
            opened = locked.opened
            # The device may have answered another task since it was looked up, and the round may have moved on.
            if opened is None or not open_slots(opened.value, kind):
                return None
            if not await _may_take(coordinator, session, opened, kind, asker):
                return None
            can_wait(session)
            await nonces.spend(session, asker.nonce, asker.nonce_expires)
            task = await _make(coordinator, session, locked.experiment, opened, kind, asker)
            leased = TaskLeased() if kind == "train" else EvaluationLeased()
            await coordinator.rounds.apply(session, locked.experiment, opened, leased)
            data = {"round": task.round, "task": task.id, "device": task.device, "kind": kind}
            events.append(session, "task.leased", data, experiment)
    except (IntegrityError, Conflict):
        return None  # the device holds a task by now, or the round moved on: the next check-in will tell
    finally:
        coordinator.presence.fleet.holds_a_task(asker.id)
    return task


async def _make(
    coordinator: Coordinator,
    session: AsyncSession,
    experiment: ExperimentRow,
    opened: OpenRound,
    kind: Literal["train", "evaluate"],
    asker: Asker,
) -> Task:
    request = experiments.request_of(experiment)
    manifest = await coordinator.storage.plans.manifest(experiment.plan)
    version = opened.value.base if kind == "train" else opened.value.version or ""
    model = await blob_rows.find(session, version)
    lease_ms = round(request.rounds.lease_s * 1000)
    edge = await edge_terms(session, opened, kind, asker.clients, request)
    reader = coordinator.storage.blobs.reader
    secure = await joined(session, opened, kind, request, manifest, reader, experiment.server_state)
    if secure is not None:
        largest = masked_limit(secure.sections)
    else:
        largest = upload_limit(manifest.sections_for(kind), request.codecs, sums=edge is not None)
    task = Task(
        id=ids.new_id(ids.TASK),
        device=asker.id,
        experiment=experiment.id,
        round=opened.value.number,
        kind=kind,
        plan=request.plan,
        model=BlobRef(sha256=version, size=model.size if model else 0),
        frozen=request.frozen,
        hyper={**manifest.hyper, **request.hyper, **request.rounds.hyper(opened.value.number)},
        codecs=request.codecs,
        lease_ms=lease_ms,
        weight_cap=request.rounds.weight_cap,
        upload_limit=min(largest, coordinator.settings.update_limit),
        seed=_seed(request.seed, experiment.id, opened.value.number, asker.id),
        edge=edge,
        secure=secure,
        privacy=await coordinator.rounds.spending.claim(experiment, request),
        local=local_terms(privacy_of(request)) if kind == "train" else None,
        lineage=await experiments.lineage(session, experiment, version, number=opened.value.number),
    )
    now = now_ms()
    session.add(
        TaskRow(
            id=task.id,
            experiment=experiment.id,
            round=task.round,
            place=opened.value.place,
            attempt=secure.attempt if secure else None,
            kind=kind,
            device=asker.id,
            state=tasks.LEASED,
            message=task.model_dump_json(exclude={"signature"}),
            lease_until=now + lease_ms,
            clients=edge.max_clients if edge else 1,
            sums="{}",
            bytes_up=0,
            created_at=now,
        )
    )
    await session.flush()
    return task.signed(coordinator.identity.key)


def _seed(seed: int, experiment: str, number: int, device: str) -> int:
    """A seed of 53 bits, its own for every device and round."""
    return int(sha256_hex(f"{seed}/{experiment}/{number}/{device}".encode())[:16], 16) >> 11
