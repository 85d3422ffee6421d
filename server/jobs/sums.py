"""Secure aggregation: masked vectors added up while they come, the sum of each attempt opened, and what the opened sums
of a round make: a version, or a measurement.

A crash in between means doing it again, from the same rows and blobs and with the same result. An opened sum is a blob
among the updates until its attempt is over: where it is gone or damaged when it is needed, it is opened again.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.due import SUMS
from coterie.aggregation.engine import EvaluationSummed, Work
from coterie.errors import InternalError, StorageError
from coterie.protocol.device import TaskKind
from coterie.protocol.secagg import SecureTerms
from coterie.server.clock import now_ms
from coterie.server.jobs.kind import JobKind, JobResult, MadeFile, round_due, still_due
from coterie.server.jobs.noise import noise_of
from coterie.server.jobs.versions import keep_version, remember_version, version_files
from coterie.server.jobs.wanted import UNMASK
from coterie.server.secure import opening
from coterie.server.secure.context import RoundContext
from coterie.server.secure.failing import end_without_sum, event_fields
from coterie.server.secure.machine import Failed, Machine
from coterie.server.store import attempts, events, experiments, jobs, mailbox, tasks
from coterie.server.store.attempts import AttemptStatus
from coterie.server.store.experiments import Locked, OpenRound
from coterie.server.store.jobs import Job, JobKey
from coterie.server.store.tables import AttemptRow, ExperimentRow
from coterie.server.worker.workers import JobFailed


@dataclass(frozen=True)
class OpenedSum:
    """The sum of an attempt.

    total: the digest of its file.
    survivors: of how many clients it is.
    blamed: places of a dealer and a revealer whose share did not fit, the latter null where no choice of shares did.
    """

    attempt: AttemptRow
    machine: Machine
    total: str
    survivors: int
    blamed: Sequence[Sequence[int | None]]

    @property
    def terms(self) -> SecureTerms:
        """What its clients were told."""
        return self.machine.state.terms


async def _running_sum(context: RoundContext, job: Job, folder: Path) -> Mapping[str, Any] | None:
    async with context.storage.database.read() as session:
        members = await attempts.members(session, job.key.subject)
    coordinator = [member for member in members if member.upload is not None]
    return opening.summands(context.storage.blobs, coordinator) if coordinator else None


async def _nothing_more(
    context: RoundContext, session: AsyncSession, job: Job, locked: Locked, result: JobResult
) -> None:
    """The running sum is a cache: only the job's row tells of it."""


async def forget_over(context: RoundContext, job: Job) -> None:
    """Delete the sums of a round's attempts that are over: the round may have ended, and its files been deleted, while
    a worker was still at one.
    """
    async with context.storage.database.read() as session:
        rows = await attempts.of_round(session, job.key.experiment, job.key.round)
        opened = await jobs.made(session, job.key.experiment, job.key.round, UNMASK)
    over = [row.id for row in rows if row.phase in attempts.OVER]
    for attempt in over:
        opening.forget(context.storage.blobs, attempt)
    digests = [opened[attempt] for attempt in over if attempt in opened]
    if digests:
        await context.storage.blobs.delete("updates", digests)


async def _unmask_arguments(context: RoundContext, job: Job, folder: Path) -> Mapping[str, Any] | None:
    async with context.storage.database.read() as session:
        row = await experiments.find(session, job.key.experiment)
        attempt = await attempts.find(session, job.key.subject)
        found = await round_due(session, job, *SUMS)
        if row is None or attempt is None or found is None or attempt.phase != attempts.UNMASKING:
            return None
        machine = await context.machines.of(session, attempt.id, attempt.version)
        members = await attempts.members(session, attempt.id)
        revealed = await mailbox.bundles(session, attempt.id, "reveal")
    # What was not paid for is never opened.
    if attempt.kind == "train" and await noise_of(context, job, row) is None:
        return None
    if machine is None:
        raise InternalError(f"The attempt {attempt.id} has no state.")
    places = {member.id: machine.places.get(member.device) for member in members}
    alive = [member for member in members if places[member.id] in machine.state.arrived]
    shares = {place: revealed[task] for task, place in places.items() if task in revealed and place is not None}
    return await opening.unmasking(context.storage.blobs, machine, alive, shares, folder)


def _opened(result: JobResult) -> tuple[Mapping[str, Any] | None, str | None]:
    if "cause" in result:
        return None, None
    return {"survivors": result["survivors"], "blamed": result["blamed"]}, result["total"]["sha256"]


def _sum_file(result: JobResult) -> tuple[MadeFile, ...]:
    if "cause" in result:
        return ()
    return (MadeFile("updates", result["total"]["sha256"], Path(result["total"]["path"])),)


async def _keep_unmasked(
    context: RoundContext, session: AsyncSession, job: Job, locked: Locked, result: JobResult
) -> None:
    if "cause" in result:
        await _fail(context, session, job, locked, Failed(result["cause"], result["detail"]))


async def _fail(context: RoundContext, session: AsyncSession, job: Job, locked: Locked, failed: Failed) -> None:
    """End the attempt that a job is about, or all that the round waits for, without a sum."""
    rows = await attempts.of_round(session, job.key.experiment, job.key.round)
    for row in rows:
        if row.phase == attempts.UNMASKING and job.key.subject in ("", row.id):
            if await end_without_sum(context.rounds, session, locked, _status(row), failed):
                context.metrics.attempts.labels("failed").inc()


def _failing(cause: str) -> Callable[[RoundContext, AsyncSession, Job, Locked, JobFailed], Awaitable[None]]:
    """What a refusal of the worker makes true: attempts that end by this cause."""

    async def refuse(context: RoundContext, session: AsyncSession, job: Job, locked: Locked, error: JobFailed) -> None:
        await _fail(context, session, job, locked, Failed(cause, error.message))

    return refuse


async def _opened_sums(
    context: RoundContext, session: AsyncSession, job: Job, kind: TaskKind
) -> list[OpenedSum] | None:
    """The opened sums of a round. None, with whatever is missing put on the list again, where one is gone."""
    sums: list[OpenedSum] = []
    for attempt in await attempts.of_round(session, job.key.experiment, job.key.round, kind):
        if attempt.phase != attempts.UNMASKING:
            continue
        key = JobKey(job.key.experiment, job.key.round, UNMASK, attempt.id)
        row, machine = await jobs.find(session, key), await context.machines.of(session, attempt.id, attempt.version)
        if machine is None or row is None or row.state != jobs.DONE or row.result is None or row.digest is None:
            return None
        answer = json.loads(row.result)
        sums.append(OpenedSum(attempt, machine, row.digest, answer["survivors"], answer["blamed"]))
    return sums


async def _sums_here(context: RoundContext, job: Job, kind: TaskKind) -> list[OpenedSum] | None:
    """The opened sums of a round, whose blobs are what they were. None where one has to be opened again first."""
    async with context.storage.database.read() as session:
        sums = await _opened_sums(context, session, job, kind)
    if not sums:
        return None
    gone = [one for one in sums if not await asyncio.to_thread(_is_whole, context, one)]
    if not gone:
        return sums
    async with context.storage.database.write("job") as session:
        for one in gone:
            await jobs.redo(session, JobKey(job.key.experiment, job.key.round, UNMASK, one.attempt.id), now_ms())
    return None


def _is_whole(context: RoundContext, opened: OpenedSum) -> bool:
    try:
        context.storage.blobs.reader.check("updates", opened.total, "an opened sum")
    except StorageError:
        return False
    return True


async def _version_arguments(context: RoundContext, job: Job, folder: Path) -> Mapping[str, Any] | None:
    found, row = await _round(context, job, Work.SUM)
    sums = await _sums_here(context, job, "train")
    if found is None or row is None or sums is None:
        return None
    central = await noise_of(context, job, row)
    if central is None:
        return None
    request = experiments.request_of(row)
    return {
        "blobs": context.storage.blobs.reader.to_json(),
        "manifest": row.plan,
        "terms": sums[0].terms.model_dump(mode="json"),
        "base": found.value.base,
        "sums": [{"total": opened.total, "survivors": opened.survivors} for opened in sums],
        "expected": request.rounds.cohort,
        "reducer": request.reducer,
        "central": central or None,
        "server": request.server.model_dump(mode="json"),
        "server_state": row.server_state,
        "out": str(folder),
    }


async def _round(context: RoundContext, job: Job, work: Work) -> tuple[OpenRound | None, ExperimentRow | None]:
    async with context.storage.database.read() as session:
        return await round_due(session, job, work), await experiments.find(session, job.key.experiment)


async def _keep_version(
    context: RoundContext, session: AsyncSession, job: Job, locked: Locked, result: JobResult
) -> None:
    opened = still_due(job, locked.opened, Work.SUM)
    if opened is None:
        return
    sums = await _end_with_sums(context, session, job, "train")
    dropped = opened.value.accepted - sum(one.survivors for one in sums)
    await keep_version(context, session, locked.experiment, opened, result, rejected=dropped)


async def _evaluation_arguments(context: RoundContext, job: Job, folder: Path) -> Mapping[str, Any] | None:
    found, row = await _round(context, job, Work.SUM_EVALUATIONS)
    sums = await _sums_here(context, job, "evaluate")
    if found is None or row is None or sums is None:
        return None
    (one,) = sums  # an evaluation has one attempt
    return {
        "blobs": context.storage.blobs.reader.to_json(),
        "manifest": row.plan,
        "terms": one.terms.model_dump(mode="json"),
        "base": found.value.version,
        "total": one.total,
        "survivors": one.survivors,
    }


async def _keep_evaluation(
    context: RoundContext, session: AsyncSession, job: Job, locked: Locked, result: JobResult
) -> None:
    opened = still_due(job, locked.opened, Work.SUM_EVALUATIONS)
    if opened is None:
        return
    for one in await _end_with_sums(context, session, job, "evaluate"):
        await tasks.settle_attempt(session, one.attempt.id, tasks.COUNTED)
    await context.rounds.apply(session, locked.experiment, opened, EvaluationSummed(result["metrics"]))


async def _end_with_sums(context: RoundContext, session: AsyncSession, job: Job, kind: TaskKind) -> list[OpenedSum]:
    """End a round's attempts with their sums: the clients that are in none drop out by name."""
    sums = await _opened_sums(context, session, job, kind)
    if not sums:
        raise InternalError(f"Round {job.key.round} of {job.key.experiment} has no opened sums any more.")
    for one in sums:
        attempt, machine = one.attempt, one.machine
        changes = {
            "phase": attempts.SUMMED,
            "state": None,
            "deadline_at": None,
            "survivors": one.survivors,
            "finished_at": now_ms(),
        }
        if not await attempts.move(session, attempt.id, attempt.version, changes):
            raise InternalError(f"The attempt {attempt.id} was changed by another transaction.")
        dropped = 0
        for member in await attempts.members(session, attempt.id):
            if machine.places.get(member.device, -1) not in machine.state.arrived:
                dropped += 1
                await tasks.reject(session, member.id, tasks.ATTEMPT_DROPPED, "It was missing when the sum was made.")
        # By name, since nobody knows who stood at which place once the attempt's state is gone.
        at = {place: device for device, place in machine.places.items()}
        blamed = [[None if place is None else at[place] for place in pair] for pair in one.blamed]
        details = {"survivors": one.survivors, "dropped": dropped, "blamed": blamed}
        events.append(session, "attempt.summed", event_fields(_status(attempt)) | details, attempt.experiment)
    context.metrics.attempts.labels("summed").inc(len(sums))
    return sums


def _status(attempt: AttemptRow) -> AttemptStatus:
    """A row that waits for nobody, as it was seen."""
    return AttemptStatus(
        attempt.id, attempt.experiment, attempt.round, attempt.kind, attempt.phase, None, attempt.version, 0, 0
    )


RUNNING_SUM = JobKind(
    worker="secure_sum",
    arguments=_running_sum,
    keep=_nothing_more,
    transaction="job",
    remember=lambda result: ({"holds": result["holds"]}, None),
    tidy=forget_over,
)
UNMASKING = JobKind(
    worker="unmask",
    arguments=_unmask_arguments,
    keep=_keep_unmasked,
    transaction="job",
    refuse=_failing("unmask_failed"),
    refused="attempt",
    files=_sum_file,
    point="opened",
    remember=_opened,
    tidy=forget_over,
)
SECURE_VERSION = JobKind(
    worker="secure_aggregate",
    arguments=_version_arguments,
    keep=_keep_version,
    transaction="aggregated",
    refuse=_failing("aggregate_failed"),
    refused="attempt",
    files=version_files,
    remember=remember_version,
    tidy=forget_over,
)
SECURE_MEASUREMENT = JobKind(
    worker="secure_evaluation",
    arguments=_evaluation_arguments,
    keep=_keep_evaluation,
    transaction="evaluated",
    refuse=_failing("evaluation_failed"),
    refused="attempt",
    tidy=forget_over,
)
