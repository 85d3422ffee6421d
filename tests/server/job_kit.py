"""A runner by itself, in this process or as a process of its own: ``python job_kit.py FOLDER OWNER LEASE_S HANGS``."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.engine import start
from coterie.aggregation.progress import ExperimentProgress
from coterie.aggregation.round import RoundConfig
from coterie.protocol.conversion import to_text
from coterie.server.bell import Bell
from coterie.server.faults import CoordinatorFaults
from coterie.server.jobs.kind import JobKind, JobResult
from coterie.server.jobs.runner import JobRunner
from coterie.server.metrics import Metrics
from coterie.server.plans import Plans
from coterie.server.rounds.transitions import Rounds
from coterie.server.secure.context import RoundContext
from coterie.server.storage import Storage
from coterie.server.store import events, jobs
from coterie.server.store.blobs import BlobStore
from coterie.server.store.dialect import sqlite_url
from coterie.server.store.engine import Database
from coterie.server.store.experiments import Locked
from coterie.server.store.jobs import Job, JobKey
from coterie.server.store.objects import open_objects
from coterie.server.store.tables import ExperimentRow, JobRow, PopulationRow, RoundRow
from coterie.server.worker.workers import Workers

KEY = JobKey("exp_one", 1, "warm")
DONE = "test.done"


async def plant(database: Database) -> None:
    """One experiment with a round that is not over."""
    value = start(1, "b" * 64, RoundConfig(cohort=1, min_updates=1))
    async with database.write("experiment") as session:
        session.add(PopulationRow(name="people", schema_json="{}", schema_digest="d" * 64, created_at=1))
        await session.flush()
        session.add(
            ExperimentRow(
                id=KEY.experiment, name="one", population="people", request="{}", plan="p" * 64, state="running",
                progress=to_text(ExperimentProgress(current="b" * 64)), round=1, model="b" * 64, created_at=1,
            )
        )  # fmt: skip
        await session.flush()
        session.add(
            RoundRow(
                experiment=KEY.experiment, number=1, phase=value.phase.value, state=to_text(value), base=value.base,
                created_at=1,
            )
        )  # fmt: skip


def kind_of(hangs: bool, folder: Path) -> JobKind:
    """A job of a real worker process whose result is one event. hangs: its runner is at it until it is killed."""

    async def arguments(context: RoundContext, job: Job, scratch: Path) -> Mapping[str, Any]:
        (folder / f"at-it-{job.owner}").touch()
        if hangs:
            await asyncio.sleep(3600)
        return {}

    async def keep(context: RoundContext, session: AsyncSession, job: Job, locked: Locked, result: JobResult) -> None:
        events.append(session, DONE, {"owner": job.owner, "attempt": job.attempt}, job.key.experiment)

    return JobKind(worker="warm", arguments=arguments, keep=keep, transaction="aggregated")


@asynccontextmanager
async def running(folder: Path, owner: str, lease_s: float, *, hangs: bool = False) -> AsyncGenerator[JobRunner, None]:
    """A runner over the database of a folder."""
    bell, faults = Bell(), CoordinatorFaults(None)
    database = Database(sqlite_url(folder / "coterie.db"), faults, bell)
    blobs = BlobStore(open_objects((folder / "blobs").as_uri()), folder / "blobs", faults)
    workers = Workers(attempts=1, timeout_s=600)
    context = RoundContext(
        storage=Storage(database=database, blobs=blobs, plans=Plans(blobs)),
        rounds=cast(Rounds, None),
        metrics=Metrics(),
    )
    kinds = {KEY.kind: kind_of(hangs, folder)}
    try:
        yield JobRunner(context=context, workers=workers, kinds=kinds, bell=bell, owner=owner, lease_s=lease_s)
    finally:
        await workers.close()
        await database.close()


async def row_of(runner: JobRunner) -> JobRow | None:
    """The job as it stands."""
    async with runner.context.storage.database.read() as session:
        return await jobs.find(session, KEY)


async def turn(runner: JobRunner) -> None:
    """One look, as the driver takes it."""
    row = await row_of(runner)
    if row is None or row.state in jobs.LIVE:
        await runner.look([KEY], {} if row is None else {KEY: row})


async def serve(folder: Path, owner: str, lease_s: float, hangs: bool) -> None:
    """Look again and again, until killed."""
    async with running(folder, owner, lease_s, hangs=hangs) as runner:
        while True:
            await turn(runner)
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4] == "hangs"))
