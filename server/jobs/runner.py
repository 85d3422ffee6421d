"""The runner: takes jobs that are wanted, says that it lives while a worker is at them, and records what came of them.

It holds no state that a restart could lose. Which jobs are wanted follows from the rounds; who is at one, and how often
it has failed, stands in its row. A runner that dies says no more, so that another takes its job when the lease ends.
"""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from coterie.errors import CoterieError
from coterie.server.bell import Bell
from coterie.server.clock import now_ms
from coterie.server.jobs.kind import JobKind, JobResult
from coterie.server.secure.context import RoundContext
from coterie.server.store import experiments, jobs
from coterie.server.store.jobs import Job, JobKey
from coterie.server.store.received import chunks_of
from coterie.server.store.tables import JobRow
from coterie.server.worker.workers import JobFailed, WorkerLost, Workers

RETRY_S = 1.0
LONGEST_RETRY_S = 60.0
BEATS_PER_LEASE = 3
SLACK_MS = 1000
log = structlog.get_logger("coterie.server.jobs")


@dataclass(frozen=True, kw_only=True)
class JobRunner:
    """Does jobs by a worker process.

    owner: names this process among those that work on the same rows.
    lease_s: how long a job is this runner's without its saying that it lives.
    """

    context: RoundContext
    workers: Workers
    kinds: Mapping[str, JobKind]
    bell: Bell
    owner: str
    lease_s: float
    _tasks: dict[JobKey, asyncio.Task[None]] = field(default_factory=dict[JobKey, "asyncio.Task[None]"])

    async def look(self, keys: Sequence[JobKey], rows: Mapping[JobKey, JobRow]) -> int | None:
        """Start whatever of these may be taken. Returns when another may be, in milliseconds, if that is known."""
        now = now_ms()
        if any(self._too_far(row, now) for row in rows.values()):
            await self._begin_anew()
            return None
        coming: list[int] = []
        for key in keys:
            row = rows.get(key)
            if key in self._tasks:
                continue
            if jobs.takeable(row, now):
                self._tasks[key] = asyncio.create_task(
                    self._run(key, row), name=f"{key.kind} {key.experiment} {key.round}"
                )
            elif row is not None and (at := jobs.takeable_at(row)) is not None:
                coming.append(at)
        return min(coming, default=None)

    async def close(self) -> None:
        """Leave what is under way to whoever comes next."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        async with self.context.storage.database.read() as session:
            running = await jobs.any_running(session, self.owner)
        if running:
            async with self.context.storage.database.write("job") as session:
                await jobs.release(session, now_ms(), self.owner)

    async def take(self, key: JobKey, row: JobRow | None) -> Job | None:
        """Take a job; None where somebody else has it.

        row: as it was seen.
        """
        now, seen = now_ms(), 0 if row is None else row.attempt
        async with self.context.storage.database.write("job") as session:
            return await jobs.take(session, key, self.owner, seen=seen, now=now, until=now + self._lease_ms)

    @property
    def _lease_ms(self) -> int:
        return round(1000 * self.lease_s)

    def _too_far(self, row: JobRow, now: int) -> bool:
        """Whether a lease or a wait ends later than any can: then the clock was set back."""
        at = jobs.takeable_at(row) if row.state in jobs.LIVE else None
        longest = self._lease_ms if row.state == jobs.RUNNING else round(1000 * LONGEST_RETRY_S)
        return at is not None and at - now > longest + SLACK_MS

    async def _begin_anew(self) -> None:
        now = now_ms()
        async with self.context.storage.database.write("job") as session:
            await jobs.shorten(session, lease_until=now + self._lease_ms, due_at=now)
        log.warning("the clock was set back", owner=self.owner)

    async def _run(self, key: JobKey, row: JobRow | None) -> None:
        try:
            job = await self.take(key, row)
            if job is not None:
                await self._do(job)
        except Exception as error:
            log.error("job cannot go on yet", experiment=key.experiment, round=key.round, job=key.kind, exc_info=error)
            await asyncio.sleep(RETRY_S)
        finally:
            self._tasks.pop(key, None)
            self.bell.ring()

    async def _do(self, job: Job) -> None:
        beating = asyncio.create_task(self._beat(job), name="beat")
        try:
            await self.perform(job)
        except Exception as error:
            await self._put_back(job, error)
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _beat(self, job: Job) -> None:
        """Extend the lease again and again; stop when the job is somebody else's."""
        leased = True
        while leased:
            await asyncio.sleep(self.lease_s / BEATS_PER_LEASE)
            try:
                async with self.context.storage.database.write("job") as session:
                    leased = await jobs.extend(session, job, now_ms() + self._lease_ms)
            except Exception as error:
                log.error("lease cannot be extended yet", job=job.key.kind, exc_info=error)

    async def perform(self, job: Job) -> None:
        """Do a job that was taken. Raises whatever keeps it from being done now."""
        kind = self.kinds[job.key.kind]
        folder = self.context.storage.blobs.scratch_file(f"{job.id}-{job.attempt}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        try:
            await self._perform(kind, job, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            await kind.tidy(self.context, job)

    async def _perform(self, kind: JobKind, job: Job, folder: Path) -> None:
        arguments = await kind.arguments(self.context, job, folder)
        if arguments is None:
            await self._wait(job)
            return
        try:
            result = await self.workers.run(kind.worker, arguments)
        except WorkerLost:
            raise
        except JobFailed as error:
            await self._refused(kind, job, error)
            return
        await self.keep(kind, job, result)

    async def keep(self, kind: JobKind, job: Job, result: JobResult) -> bool:
        """Make a result durable, and record it in one transaction with the end of the job. False, with nothing
        changed, where the job is not this runner's any more.
        """
        files = kind.files(result)
        # Nobody would look for the files of a lost job before the sweep.
        if files and not await self._has(job):
            return False
        for file in files:
            await self.context.storage.blobs.put(file.shelf, file.digest, chunks_of(file.path), point=kind.point)
        details, digest = await asyncio.to_thread(kind.remember, result)
        async with self.context.storage.database.write(kind.transaction) as session:
            locked = await experiments.lock(session, job.key.experiment)
            kept = await jobs.finish(session, job, jobs.DONE, now_ms(), result=details, digest=digest)
            if kept:
                await kind.keep(self.context, session, job, locked, result)
        if not kept:
            _log_lost(job)
        return kept

    async def _has(self, job: Job) -> bool:
        async with self.context.storage.database.read() as session:
            has = await jobs.is_leased(session, job)
        if not has:
            _log_lost(job)
        return has

    async def _refused(self, kind: JobKind, job: Job, error: JobFailed) -> None:
        if kind.refuse is None:
            raise error
        async with self.context.storage.database.write(kind.refused) as session:
            locked = await experiments.lock(session, job.key.experiment)
            if await jobs.finish(session, job, jobs.FAILED, now_ms(), error=error.message[:2000]):
                await kind.refuse(self.context, session, job, locked, error)

    async def _wait(self, job: Job) -> None:
        """It is not due, or not yet: whoever wants it still looks again."""
        async with self.context.storage.database.write("job") as session:
            due_at = now_ms() + round(1000 * RETRY_S)
            await jobs.put_back(session, job, due_at=due_at, failures=job.failures, error=None)

    async def _put_back(self, job: Job, error: Exception) -> None:
        pause = min(RETRY_S * 2**job.failures, LONGEST_RETRY_S)
        why = error.message if isinstance(error, CoterieError) else f"{type(error).__name__}: {error}"
        place = {"experiment": job.key.experiment, "round": job.key.round, "job": job.key.kind}
        details = {"why": why, "hint": error.hint} if isinstance(error, CoterieError) else {"exc_info": error}
        log.error("round cannot go on yet", **place, again_s=pause, **details)
        async with self.context.storage.database.write("job") as session:
            due_at = now_ms() + round(1000 * pause)
            await jobs.put_back(session, job, due_at=due_at, failures=job.failures + 1, error=why)


def _log_lost(job: Job) -> None:
    log.warning("result of a lost job", job=job.key.kind, round=job.key.round, attempt=job.attempt)
