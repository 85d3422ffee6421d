"""Updates that the coordinator sees, made into a version; and those of an edge aggregator's round into its answer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.engine import AggregateFailed, AggregateReady, Work
from coterie.errors import InternalError
from coterie.server.jobs.kind import JobKind, JobResult, MadeFile, round_due, still_due
from coterie.server.jobs.noise import noise_of
from coterie.server.rounds import inputs
from coterie.server.secure.context import RoundContext
from coterie.server.store import blob_rows, experiments, tasks, upstream
from coterie.server.store.blob_reader import DAMAGED
from coterie.server.store.experiments import Locked, OpenRound
from coterie.server.store.jobs import Job
from coterie.server.store.tables import ExperimentRow
from coterie.server.worker.workers import JobFailed

log = structlog.get_logger("coterie.server.jobs")


def version_files(result: JobResult) -> tuple[MadeFile, ...]:
    """The new version, and the server's state where there is one."""
    made = (result["weights"], result["state"])
    return tuple(MadeFile("blobs", file["sha256"], Path(file["path"])) for file in made if file is not None)


def remember_version(result: JobResult) -> tuple[Mapping[str, Any] | None, str | None]:
    """The version's digest."""
    return None, result["weights"]["sha256"]


async def keep_version(
    context: RoundContext,
    session: AsyncSession,
    experiment: ExperimentRow,
    opened: OpenRound,
    result: JobResult,
    *,
    rejected: int,
) -> None:
    """Tell the round of its new version, whose files are durable.

    rejected: how many accepted updates are not in it.
    """
    weights, state = result["weights"], result["state"]
    await blob_rows.keep(session, weights["sha256"], weights["size"], "model")
    if state is not None:
        await blob_rows.keep(session, state["sha256"], state["size"], "state")
    event = AggregateReady(weights["sha256"], result["metrics"], rejected, result.get("clipped"))
    changes = {"aggregate": weights["sha256"], "server_state": state["sha256"] if state else None}
    context.rounds.traffic.use(opened.row.experiment, [weights["sha256"]])
    await context.rounds.apply(session, experiment, opened, event, changes)


async def _aggregate_arguments(context: RoundContext, job: Job, folder: Path) -> Mapping[str, Any] | None:
    async with context.storage.database.read() as session:
        found = await round_due(session, job, Work.AGGREGATE)
        row = await experiments.find(session, job.key.experiment)
        accepted = await tasks.accepted(session, job.key.experiment, job.key.round)
    if found is None or row is None:
        return None
    central = await noise_of(context, job, row)
    if central is None:
        return None
    return {**inputs.aggregation(context.storage.blobs, found, row, accepted, folder), "central": central or None}


async def _keep_aggregate(
    context: RoundContext, session: AsyncSession, job: Job, locked: Locked, result: JobResult
) -> None:
    opened = still_due(job, locked.opened, Work.AGGREGATE)
    if opened is None:
        return
    await _reject(context, session, job, result["rejected"])
    await keep_version(context, session, locked.experiment, opened, result, rejected=len(result["rejected"]))


async def _accumulate_arguments(context: RoundContext, job: Job, folder: Path) -> Mapping[str, Any] | None:
    async with context.storage.database.read() as session:
        found = await round_due(session, job, Work.AGGREGATE)
        row = await experiments.find(session, job.key.experiment)
        accepted = await tasks.accepted(session, job.key.experiment, job.key.round)
        above = None if found is None else await upstream.find(session, found.row.upstream or "")
    if found is None or row is None:
        return None
    if above is None:
        raise InternalError(f"Round {found.row.number} of {row.id} answers a task that has no row.")
    terms = upstream.terms(above)
    return {
        "blobs": context.storage.blobs.reader.to_json(),
        "manifest": row.plan,
        "task": above.id,
        "base": found.value.base,
        "reducer": terms.reducer,
        "min_clients": above.min_clients,
        "max_clients": terms.max_clients,
        "updates": inputs.updates(accepted),
        "weight_cap": upstream.message(above).weight_cap,
        "out": str(folder),
    }


def _accumulator(result: JobResult) -> tuple[MadeFile, ...]:
    file = result["accumulator"]
    return (MadeFile("updates", file["sha256"], Path(file["path"])),)


async def _keep_accumulator(
    context: RoundContext, session: AsyncSession, job: Job, locked: Locked, result: JobResult
) -> None:
    """It is no version: the round keeps the one it had."""
    opened = still_due(job, locked.opened, Work.AGGREGATE)
    if opened is None:
        return
    rejected, digest = result["rejected"], result["accumulator"]["sha256"]
    await _reject(context, session, job, rejected)
    await upstream.keep(session, opened.row.upstream or "", digest)
    event = AggregateReady(opened.value.base, result["metrics"], len(rejected))
    await context.rounds.apply(session, locked.experiment, opened, event, {"aggregate": digest})


async def _refuse(context: RoundContext, session: AsyncSession, job: Job, locked: Locked, error: JobFailed) -> None:
    """No version can be made of these updates."""
    opened = still_due(job, locked.opened, Work.AGGREGATE)
    if opened is None:
        return
    reason = error.details.get("refused")
    if reason == DAMAGED:
        log.error("a round has no base", experiment=job.key.experiment, round=job.key.round, why=error.message)
        context.metrics.damaged.inc()
    await context.rounds.apply(session, locked.experiment, opened, AggregateFailed(error.message, reason))


async def _reject(
    context: RoundContext, session: AsyncSession, job: Job, rejected: Sequence[Mapping[str, str]]
) -> None:
    """Take the updates out of the round that were found unusable."""
    for entry in rejected:
        if entry["code"] == DAMAGED:
            place = {"experiment": job.key.experiment, "round": job.key.round, "task": entry["task"]}
            log.error("a stored update is damaged", **place, why=entry["message"])
            context.metrics.damaged.inc()
        await tasks.reject(session, entry["task"], entry["code"], entry["message"])


AGGREGATION = JobKind(
    worker="aggregate",
    arguments=_aggregate_arguments,
    keep=_keep_aggregate,
    transaction="aggregated",
    refuse=_refuse,
    files=version_files,
    remember=remember_version,
)
ACCUMULATION = JobKind(
    worker="accumulate",
    arguments=_accumulate_arguments,
    keep=_keep_accumulator,
    transaction="aggregated",
    refuse=_refuse,
    files=_accumulator,
    point="accumulator",
    remember=lambda result: (None, result["accumulator"]["sha256"]),
)
