"""A candidate measured on the coordinator's own rows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.engine import Evaluated, Work
from coterie.server.jobs.kind import JobKind, JobResult, round_due, still_due
from coterie.server.secure.context import RoundContext
from coterie.server.store import experiments
from coterie.server.store.experiments import Locked
from coterie.server.store.jobs import Job
from coterie.server.worker.workers import JobFailed


async def _arguments(context: RoundContext, job: Job, folder: Path) -> Mapping[str, Any] | None:
    async with context.storage.database.read() as session:
        found = await round_due(session, job, Work.EVALUATE)
        row = await experiments.find(session, job.key.experiment)
    if found is None or row is None:
        return None
    request = experiments.request_of(row)
    manifest = await context.storage.plans.manifest(row.plan)
    return {
        "blobs": context.storage.blobs.reader.to_json(),
        "manifest": row.plan,
        "graphs": {stage.name: stage.sha256 for stage in manifest.stages if stage.over == "pass"},
        "weights": found.value.version or "",
        "frozen": request.frozen.sha256 if request.frozen else None,
        "data": request.evaluation.sha256 if request.evaluation else "",
        "metrics": list(request.evaluation_metrics),
    }


async def _keep(context: RoundContext, session: AsyncSession, job: Job, locked: Locked, result: JobResult) -> None:
    await _tell(context, session, job, locked, Evaluated(result["metrics"]))


async def _refuse(context: RoundContext, session: AsyncSession, job: Job, locked: Locked, error: JobFailed) -> None:
    await _tell(context, session, job, locked, Evaluated(None, error.message))


async def _tell(context: RoundContext, session: AsyncSession, job: Job, locked: Locked, event: Evaluated) -> None:
    opened = still_due(job, locked.opened, Work.EVALUATE)
    if opened is not None:
        await context.rounds.apply(session, locked.experiment, opened, event)


EVALUATION = JobKind(
    worker="evaluate",
    arguments=_arguments,
    keep=_keep,
    transaction="evaluated",
    refuse=_refuse,
    refused="evaluated",
)
