"""Numeric jobs as rows: one runner has a job, one result is kept, and whoever dies loses it when its lease ends."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from job_kit import DONE, KEY, plant, row_of, running, turn
from sqlalchemy import select

from coterie.aggregation import engine as e
from coterie.protocol.canonical import sha256_hex
from coterie.server.clock import now_ms
from coterie.server.jobs.kind import JobResult, MadeFile
from coterie.server.jobs.kinds import KINDS
from coterie.server.jobs.runner import JobRunner
from coterie.server.jobs.wanted import due_entries, jobs_to_do
from coterie.server.store import jobs
from coterie.server.store.attempts import AttemptStatus
from coterie.server.store.experiments import OpenRound
from coterie.server.store.jobs import Job, JobKey
from coterie.server.store.tables import EventRow, JobRow, RoundRow
from tests.empty_database import prepare
from tests.lock_order import in_order
from tests.patience import patience

LEASE_MS = 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return prepare(tmp_path / "state")


def with_runner(folder: Path, act: Callable[[JobRunner], Awaitable[None]], lease_s: float = 30.0) -> None:
    """Run a test on a planted database."""

    async def check() -> None:
        async with running(folder, "one", lease_s) as runner:
            await plant(runner.context.storage.database)
            await act(runner)

    with in_order():
        asyncio.run(check())


async def take(runner: JobRunner, owner: str, now: int, seen: int) -> Job | None:
    async with runner.context.storage.database.write("job") as session:
        return await jobs.take(session, KEY, owner, seen=seen, now=now, until=now + LEASE_MS)


async def finish(runner: JobRunner, job: Job, state: str = jobs.DONE, **told: str) -> bool:
    async with runner.context.storage.database.write("job") as session:
        return await jobs.finish(session, job, state, now_ms(), result=told)


async def done_by(runner: JobRunner) -> list[tuple[str, int]]:
    """Whose results were kept."""
    async with runner.context.storage.database.read() as session:
        found = (await session.execute(select(EventRow.data).where(EventRow.type == DONE))).scalars()
        told = [json.loads(data) for data in found]
    return [(each["owner"], each["attempt"]) for each in told]


def test_a_job_belongs_to_one_runner_until_its_lease_ends(folder: Path) -> None:
    async def check(runner: JobRunner) -> None:
        first = await take(runner, "one", 0, 0)
        assert first is not None and first.attempt == 1
        assert await take(runner, "two", LEASE_MS - 1, 1) is None
        second = await take(runner, "two", LEASE_MS, 1)
        assert second is not None and second.attempt == 2
        # Who looked before somebody else had it does not take it again.
        assert await take(runner, "three", 9 * LEASE_MS, 1) is None
        async with runner.context.storage.database.read() as session:
            assert len((await session.execute(select(JobRow))).scalars().all()) == 1

    with_runner(folder, check)


def test_a_result_is_recorded_once_by_whoever_has_the_job(folder: Path) -> None:
    async def check(runner: JobRunner) -> None:
        first = await take(runner, "one", 0, 0)
        second = await take(runner, "two", LEASE_MS, 1)
        assert first is not None and second is not None
        assert not await finish(runner, first, by="one")
        assert await finish(runner, second, by="two")
        for late in (first, second):
            assert not await finish(runner, late, by="late")
        row = await row_of(runner)
        assert row is not None and (row.state, row.result, row.owner) == (jobs.DONE, '{"by": "two"}', None)

    with_runner(folder, check)


def test_the_second_of_two_runners_keeps_nothing(folder: Path) -> None:
    async def check(runner: JobRunner) -> None:
        kind = runner.kinds[KEY.kind]
        first = await take(runner, "one", 0, 0)
        second = await take(runner, "two", LEASE_MS, 1)
        assert first is not None and second is not None
        assert await runner.keep(kind, second, {})
        assert not await runner.keep(kind, first, {}) and not await runner.keep(kind, second, {})
        assert await done_by(runner) == [("two", 2)]

    with_runner(folder, check)


def test_a_file_of_a_lost_job_is_not_kept(folder: Path) -> None:
    async def check(runner: JobRunner) -> None:
        (folder / "made").write_bytes(b"made")
        digest = sha256_hex(b"made")
        made = (MadeFile("updates", digest, folder / "made"),)

        def files(result: JobResult) -> tuple[MadeFile, ...]:
            return made

        kind = replace(runner.kinds[KEY.kind], files=files)
        first = await take(runner, "one", 0, 0)
        second = await take(runner, "two", LEASE_MS, 1)
        assert first is not None and second is not None
        assert not await runner.keep(kind, first, {})
        assert not await runner.context.storage.blobs.exists("updates", digest)
        assert await runner.keep(kind, second, {})
        assert await runner.context.storage.blobs.exists("updates", digest)

    with_runner(folder, check)


def test_a_lease_is_extended_while_its_holder_lives(folder: Path) -> None:
    async def check(runner: JobRunner) -> None:
        job = await take(runner, "one", 0, 0)
        assert job is not None
        async with runner.context.storage.database.write("job") as session:
            assert await jobs.extend(session, job, 5 * LEASE_MS)
        assert await take(runner, "two", 5 * LEASE_MS - 1, 1) is None
        assert await take(runner, "two", 5 * LEASE_MS, 1) is not None
        async with runner.context.storage.database.write("job") as session:
            assert not await jobs.extend(session, job, 9 * LEASE_MS)

    with_runner(folder, check)


def test_a_failed_job_waits_as_long_as_its_row_says(folder: Path) -> None:
    async def check(runner: JobRunner) -> None:
        job = await take(runner, "one", 0, 0)
        assert job is not None
        async with runner.context.storage.database.write("job") as session:
            assert await jobs.put_back(session, job, due_at=500, failures=1, error="the worker died")
        row = await row_of(runner)
        assert row is not None and (row.state, row.error) == (jobs.WAITING, "the worker died")
        assert await take(runner, "two", 499, 1) is None
        again = await take(runner, "two", 500, 1)
        assert again is not None and (again.attempt, again.failures) == (2, 1)

    with_runner(folder, check)


def test_a_job_of_a_round_that_is_over_keeps_no_result(folder: Path) -> None:
    async def check(runner: JobRunner) -> None:
        job = await take(runner, "one", 0, 0)
        assert job is not None
        async with runner.context.storage.database.write("job") as session:
            await jobs.drop(session, KEY.experiment, KEY.round, 1)
        assert not await runner.keep(runner.kinds[KEY.kind], job, {})
        assert await done_by(runner) == []

    with_runner(folder, check)


def test_a_lease_from_before_the_clock_was_set_back_ends_within_one_lease(folder: Path) -> None:
    async def check(runner: JobRunner) -> None:
        job = await take(runner, "gone", now_ms() + 2 * 3600 * 1000, 0)
        assert job is not None
        await turn(runner)
        row = await row_of(runner)
        assert row is not None and row.lease_until is not None
        assert row.lease_until - now_ms() <= 1000 * runner.lease_s
        assert (row.state, row.owner) == (jobs.RUNNING, "gone")

    with_runner(folder, check)


def test_what_an_ended_process_had_is_released_at_once(folder: Path) -> None:
    async def check(runner: JobRunner) -> None:
        assert await take(runner, "gone", now_ms(), 0) is not None
        async with runner.context.storage.database.write("job") as session:
            await jobs.release(session, now_ms())
        await turn(runner)
        async with asyncio.timeout(patience(60)):
            while not await done_by(runner):
                await asyncio.sleep(0.02)
        assert await done_by(runner) == [("one", 2)]

    with_runner(folder, check)


def opened(phase: e.RoundPhase, upstream: str | None = None, **config: bool) -> OpenRound:
    """An open round in a phase."""
    asked = e.RoundConfig(cohort=2, **config)  # pyright: ignore[reportArgumentType]
    value = replace(e.start(1, "b" * 64, asked), phase=phase, version="v" * 64)
    return OpenRound(RoundRow(experiment=KEY.experiment, number=1, upstream=upstream), value)


def standing(name: str, phase: str, arrived: int = 0) -> AttemptStatus:
    """An attempt of that round."""
    return AttemptStatus(name, KEY.experiment, 1, "train", phase, None, 0, 20, arrived)


def row(kind: str, subject: str = "", state: str = jobs.DONE, **told: int) -> tuple[JobKey, JobRow]:
    """A job of that round."""
    key = JobKey(KEY.experiment, 1, kind, subject)
    return key, JobRow(
        experiment=KEY.experiment, round=1, kind=kind, subject=subject, state=state, result=json.dumps(told)
    )


SUMMING = opened(e.RoundPhase.AGGREGATING, secure=True)
Case = tuple[OpenRound, Sequence[AttemptStatus], Sequence[tuple[JobKey, JobRow]], list[tuple[str, str]]]
WANTED: dict[str, Case] = {
    "nothing while devices train": (opened(e.RoundPhase.COLLECTING), (), (), []),
    "a version": (opened(e.RoundPhase.AGGREGATING), (), (), [("aggregate", "")]),
    "an answer to the coordinator above": (
        opened(e.RoundPhase.AGGREGATING, "task_above"),
        (),
        (),
        [("accumulate", "")],
    ),
    "a measurement": (opened(e.RoundPhase.EVALUATING, central_evaluation=True), (), (), [("evaluate", "")]),
    "nothing for a commit": (opened(e.RoundPhase.COMMITTING), (), (), []),
    "nothing while messages are awaited": (SUMMING, [standing("a", "masked", 7)], (), []),
    "the running sum": (SUMMING, [standing("a", "masked", 8)], (), [("secure_sum", "a")]),
    "the running sum again": (
        SUMMING, [standing("a", "masked", 16)], [row("secure_sum", "a", holds=8)], [("secure_sum", "a")],
    ),
    "no running sum that holds them": (SUMMING, [standing("a", "masked", 15)], [row("secure_sum", "a", holds=8)], []),
    "an opened sum as soon as it can be": (
        SUMMING, [standing("a", "unmasking"), standing("b", "masked")], (), [("unmask", "a")],
    ),
    "a version when all are open": (
        SUMMING, [standing("a", "unmasking"), standing("b", "unmasking")], [row("unmask", "a"), row("unmask", "b")],
        [("secure_aggregate", "")],
    ),
    "what is at work still": (
        SUMMING, [standing("a", "unmasking")], [row("unmask", "a", jobs.RUNNING)], [("unmask", "a")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WANTED)
def test_the_jobs_wanted_follow_from_what_is_due(case: str) -> None:
    found, standings, rows, expected = WANTED[case]
    keys = jobs_to_do(found, due_entries(found, standings, dict(rows), 0), standings, dict(rows), 0)
    assert [(key.kind, key.subject) for key in keys] == expected
    assert {key.kind for key in keys} <= set(KINDS)


def start(folder: Path, owner: str, lease_s: float, how: str) -> "subprocess.Popen[bytes]":
    script = Path(__file__).parent / "job_kit.py"
    return subprocess.Popen([sys.executable, str(script), str(folder), owner, str(lease_s), how])


def test_a_job_of_a_killed_runner_is_done_by_another_when_its_lease_ends(folder: Path) -> None:
    lease_s = patience(3.0)

    async def check(runner: JobRunner) -> None:
        process = start(folder, "victim", lease_s, "hangs")
        try:
            async with asyncio.timeout(patience(60)):
                while not (folder / "at-it-victim").exists():
                    await asyncio.sleep(0.02)
            # While it lives, it keeps its job beyond the first lease.
            until = time.monotonic() + 1.5 * lease_s
            while time.monotonic() < until:
                await turn(runner)
                await asyncio.sleep(0.05)
            row = await row_of(runner)
            assert row is not None and (row.owner, row.attempt) == ("victim", 1)
            os.kill(process.pid, signal.SIGKILL)
            killed = now_ms()
            assert process.wait(patience(20)) == -signal.SIGKILL
            row = await row_of(runner)
            assert row is not None and row.lease_until is not None and row.owner == "victim"
            async with asyncio.timeout(patience(60)):
                while not await done_by(runner):
                    await turn(runner)
                    await asyncio.sleep(0.05)
            assert await done_by(runner) == [("one", 2)]
            assert now_ms() >= row.lease_until > killed
        finally:
            process.kill()
            process.wait()

    with_runner(folder, check, lease_s)
