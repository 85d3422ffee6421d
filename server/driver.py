"""The driver: one asyncio task that keeps every running experiment moving.

A round's row says where the round is, so the driver holds no state that a restart could lose: each pass looks at the
rows, does what is due (`coterie.aggregation.due`), and sleeps until the bell rings or the next lease or deadline runs
out. What it does itself is one conditional transaction each, and doing it again after a crash is harmless; what takes
time is a job, for the runner (`coterie.server.jobs`).
"""

import asyncio
import math
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from coterie.aggregation.engine import Cleaned, Committed, DeadlinePassed, Do, Work, step, work_due
from coterie.server.bell import Bell, wait
from coterie.server.board import Board
from coterie.server.clock import now_ms
from coterie.server.jobs.runner import JobRunner
from coterie.server.jobs.wanted import UNMASK, due_entries, jobs_to_do
from coterie.server.rounds import set_back
from coterie.server.rounds.errands import Errands
from coterie.server.secure import opening
from coterie.server.secure.attempts import Attempts
from coterie.server.secure.context import RoundContext
from coterie.server.store import attempts, events, experiments, jobs, tasks
from coterie.server.store.attempts import AttemptStatus
from coterie.server.store.experiments import Locked, OpenRound
from coterie.server.store.jobs import JobKey
from coterie.server.store.parts_in_use import parts_in_use
from coterie.server.store.tables import JobRow, RoundRow, TaskRow

LONGEST_SLEEP_S = 60.0
RETRY_S = 1.0
log = structlog.get_logger("coterie.server.driver")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What one look at the rows found.

    at: when that was, in milliseconds.
    next_at: when something will be due next.
    """

    at: int
    late: Sequence[TaskRow]
    rounds: Sequence[OpenRound]
    statuses: Sequence[AttemptStatus]
    jobs: Mapping[JobKey, JobRow]
    next_at: int | None

    def pause_s(self, next_job: int | None) -> float:
        """How long nothing more will be due by itself.

        next_job: when a job may be taken, in milliseconds.
        """
        times = [time for time in (self.next_at, next_job) if time is not None]
        return min(max(min(times, default=math.inf) - now_ms(), 0) / 1000 + 0.001, LONGEST_SLEEP_S)


@dataclass(kw_only=True)
class Driver:
    """Runs from `run` until cancelled."""

    context: RoundContext
    board: Board
    bell: Bell
    attempts: Attempts
    runner: JobRunner

    def __post_init__(self) -> None:
        self._errands = Errands(self.bell)

    async def run(self) -> None:
        """Keep moving. An error in one pass is logged and tried again a little later; it never ends the driver."""
        try:
            while True:
                ring = self.bell.next_ring()
                try:
                    pause = await self._pass()
                except Exception as error:
                    log.error("pass failed", exc_info=error)
                    pause = RETRY_S
                await wait(ring, pause)
        finally:
            await self._errands.close()
            await self.attempts.close()
            await self.runner.close()

    async def _pass(self) -> float:
        """Do what is due, and say how long nothing more will be. A commit in between rings the bell."""
        seen = await self._look()
        if seen.late:
            await self._expire(seen.late)
            seen = await self._look()
        now = await self.attempts.look(seen.statuses)
        if now is None:
            return seen.pause_s(None)
        jobs: list[JobKey] = []
        for found in seen.rounds:
            # Whose experiment stands still waits; files of a round that is over go all the same.
            if found.row.experiment in self.board.quarantined and not found.value.phase.final:
                continue
            if set_back.was_set_back(found, seen.at):
                await self._guarded(found.row, set_back.begin_anew(self.context.storage.database, found))
            if found.row.deadline_at is not None and found.row.deadline_at <= seen.at:
                await self._guarded(found.row, self._deadline(found))
            entries = due_entries(found, seen.statuses, seen.jobs, now)
            self._begin(found, [entry for entry in entries if isinstance(entry, Do)], seen.statuses)
            jobs += jobs_to_do(found, entries, seen.statuses, seen.jobs, now)
        return seen.pause_s(await self.runner.look(jobs, seen.jobs))

    def _begin(self, found: OpenRound, entries: Sequence[Do], statuses: Sequence[AttemptStatus]) -> None:
        """Begin the work that is one transaction, unless somebody is at it.

        What takes time is a job (`coterie.server.jobs.wanted`).
        """
        by_id = {status.id: status for status in statuses}
        for entry in entries:
            match entry.work:
                case Work.COMMIT:
                    self._errands.start(("commit", found.row.experiment, found.row.number), self._commit, found)
                case Work.CLEAN:
                    self._errands.start(("clean", found.row.experiment, found.row.number), self._clean, found.row)
                case Work.BEGIN_ATTEMPT:
                    self.attempts.begin(by_id[entry.attempt or ""])
                case Work.END_PHASE:
                    self.attempts.end_phase(by_id[entry.attempt or ""])
                case Work.AGGREGATE | Work.EVALUATE | Work.UNMASK | Work.SUM | Work.SUM_EVALUATIONS:
                    pass  # a job

    async def _look(self) -> Snapshot:
        """One transaction, for this runs after every commit."""
        now = now_ms()
        async with self.context.storage.database.read() as session:
            expiry = await tasks.next_expiry(session)
            late = await tasks.expired(session, now) if expiry is not None and expiry <= now else ()
            rounds = await experiments.unfinished_rounds(session)
            statuses = await attempts.under_way(session)
            # While devices work there is nothing for a runner: one query less after each of their requests.
            busy = statuses or any(work_due(found.value) for found in rounds)
            rows = await jobs.of_open_rounds(session) if busy else ()
        times = (expiry, *(found.row.deadline_at for found in rounds), *(each.deadline_at for each in statuses))
        # What is due already is taken up in this pass, and rings when it is done, or is to be tried again.
        coming = [time for time in times if time is not None and time > now]
        return Snapshot(
            at=now,
            late=late,
            rounds=rounds,
            statuses=statuses,
            jobs={JobKey.of(row): row for row in rows},
            next_at=min(coming, default=None),
        )

    async def _guarded(self, row: RoundRow, work: Coroutine[Any, Any, None]) -> None:
        """Let the trouble of one experiment be no other's; what is due stays due, and is tried again a little later."""
        try:
            await work
        except Exception as error:
            log.error("round cannot go on yet", experiment=row.experiment, round=row.number, exc_info=error)
            asyncio.get_running_loop().call_later(RETRY_S, self.bell.ring)

    async def _expire(self, late: Sequence[TaskRow]) -> None:
        async with self.context.storage.database.write("expire") as session:
            locked = await experiments.lock_all(session, {task.experiment for task in late})
            for task in late:
                changes = {"verdict": tasks.ROLLED_BACK, "finished_at": now_ms()}
                if await tasks.expire(session, task.id, now_ms(), changes):
                    data = {"round": task.round, "task": task.id, "device": task.device, "kind": task.kind}
                    events.append(session, "task.expired", data, task.experiment)
                    locked[task.experiment] = await self.context.rounds.lost(session, locked[task.experiment], task)

    async def _deadline(self, earlier: OpenRound) -> None:
        async with self.context.storage.database.write("deadline") as session:
            locked = await experiments.lock(session, earlier.row.experiment)
            opened = _same(locked, earlier)
            if opened is None or opened.row.deadline_at is None or opened.row.deadline_at > now_ms():
                return
            kind = "train" if opened.row.deadline_kind == "train" else "evaluate"
            await self.context.rounds.apply(
                session, locked.experiment, opened, DeadlinePassed(kind), {"deadline_at": None}
            )

    async def _commit(self, earlier: OpenRound) -> None:
        async with self.context.storage.database.write("commit") as session:
            locked = await experiments.lock(session, earlier.row.experiment)
            opened = _same(locked, earlier)
            if opened is not None:
                await self.context.rounds.apply(session, locked.experiment, opened, Committed())

    async def _clean(self, row: RoundRow) -> None:
        """Delete the update blobs of a round that has ended, and the parts of uploads that will not go on, of whatever
        round; a crash in between only means doing it again.
        """
        experiment, number = row.experiment, row.number
        # Before the rows: an upload that is not in use then will never go on.
        begun = await self.context.storage.blobs.parts.tasks()
        async with self.context.storage.database.read() as session:
            digests = {
                *await tasks.uploads(session, experiment, number),
                *await attempts.masked_uploads(session, experiment, number),
                *(await jobs.made(session, experiment, number, UNMASK)).values(),
            }
            in_use = await parts_in_use(session) if begun else frozenset[str]()
            sums = [attempt.id for attempt in await attempts.of_round(session, experiment, number)]
        for name in begun - in_use:
            await self.context.storage.blobs.parts.drop(name)
        for attempt in sums:
            opening.forget(self.context.storage.blobs, attempt)
        await self.context.storage.blobs.delete("updates", sorted(digests))
        async with self.context.storage.database.write("cleanup") as session:
            await experiments.lock(session, experiment)
            ended = await experiments.unfinished_round(session, experiment, number)
            if ended is None:
                return
            await experiments.save_round(session, ended.row, step(ended.value, Cleaned()), {})
            await attempts.forget(session, experiment, number)
        self.context.metrics.rounds.labels(row.phase).inc()
        log.info("round ended", experiment=experiment, round=number, outcome=row.phase, why=row.cause)


def _same(locked: Locked, earlier: OpenRound) -> OpenRound | None:
    """The round as it is now, if it is still in the phase that it was found in."""
    opened = locked.opened
    same = opened is not None and opened.row.number == earlier.row.number and opened.value.phase is earlier.value.phase
    return opened if same else None
