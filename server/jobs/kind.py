"""What a kind of job is: where its arguments come from, who does it, and what becomes of the result."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.engine import work_due
from coterie.server.secure.context import RoundContext
from coterie.server.store import experiments
from coterie.server.store.experiments import Locked, OpenRound
from coterie.server.store.jobs import Job
from coterie.server.store.objects import Shelf
from coterie.server.worker.workers import JobFailed

JobResult = dict[str, Any]


@dataclass(frozen=True)
class MadeFile:
    """A file that a job made and that must be durable before anything mentions it."""

    shelf: Shelf
    digest: str
    path: Path


def no_files(result: JobResult) -> tuple[MadeFile, ...]:
    """Of a job that makes none."""
    return ()


async def nothing_to_tidy(context: RoundContext, job: Job) -> None:
    """Of a job that leaves nothing beside its folder."""


def remember_nothing(result: JobResult) -> tuple[Mapping[str, Any] | None, str | None]:
    """Of a job whose result stands elsewhere."""
    return None, None


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """One row of the table of kinds. Every function may run again after a crash, in this process or another.

    arguments: of the worker's job, from rows; None where it is not due any more. Files may lie in the folder, which is
        gone afterwards.
    files: see `MadeFile`, with point, the row of BLOB_WRITES.
    keep: what becomes true with the result, in one transaction (transaction: its row of TRANSACTIONS) with the end of
        the job, its experiment being locked.
    remember: what the job's row keeps of the result, and the digest of what it made.
    refuse: what becomes true when the job itself refuses; without one it is tried again.
    tidy: afterwards, however it ended.
    """

    worker: str
    arguments: Callable[[RoundContext, Job, Path], Awaitable[Mapping[str, Any] | None]]
    keep: Callable[[RoundContext, AsyncSession, Job, Locked, JobResult], Awaitable[None]]
    transaction: str
    refuse: Callable[[RoundContext, AsyncSession, Job, Locked, JobFailed], Awaitable[None]] | None = None
    refused: str = "aggregate_failed"
    files: Callable[[JobResult], tuple[MadeFile, ...]] = no_files
    point: str = "result"
    remember: Callable[[JobResult], tuple[Mapping[str, Any] | None, str | None]] = remember_nothing
    tidy: Callable[[RoundContext, Job], Awaitable[None]] = nothing_to_tidy


def still_due(job: Job, opened: OpenRound | None, *work: str) -> OpenRound | None:
    """The open round of an experiment, if it is a job's and one of these works is due for it still."""
    if opened is None or opened.row.number != job.key.round:
        return None
    return opened if work_due(opened.value) in work else None


async def round_due(session: AsyncSession, job: Job, *work: str) -> OpenRound | None:
    """The open round of a job, for reading it, if one of these works is due for it still."""
    return still_due(job, await experiments.open_round(session, job.key.experiment), *work)
