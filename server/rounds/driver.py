"""The driver: one asyncio task that keeps every running experiment moving.

A round's row says where the round is, so the driver holds no state that a restart could lose: each pass looks at the
rows, does what is due, and sleeps until the bell rings or the next lease or deadline runs out. What it does is either
one conditional transaction, or a numeric job whose result is stored durably before the one transaction that mentions
it; doing it again after a crash is harmless.
"""

import asyncio
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.engine import (
    AggregateFailed,
    AggregateReady,
    Committed,
    DeadlinePassed,
    Evaluated,
    Event,
    Phase,
)
from coterie.errors import CoterieError, InternalError
from coterie.server.bell import Bell, wait
from coterie.server.board import Board
from coterie.server.clock import now_ms
from coterie.server.metrics import Metrics
from coterie.server.plans import Plans
from coterie.server.rounds import inputs, set_back
from coterie.server.rounds.spending import noised_here
from coterie.server.rounds.transitions import Rounds
from coterie.server.rounds.workers import JobFailed, WorkerLost, Workers
from coterie.server.secure.attempts import Attempts
from coterie.server.secure.parts import summed_now
from coterie.server.store import attempts, blob_rows, events, experiments, tasks, upstream
from coterie.server.store.attempts import Standing
from coterie.server.store.blob_files import DAMAGED
from coterie.server.store.blobs import BlobStore
from coterie.server.store.engine import Database
from coterie.server.store.experiments import OpenRound
from coterie.server.store.tables import ExperimentRow, RoundRow, TaskRow

LONGEST_SLEEP_S = 60.0
RETRY_S = 1.0
log = structlog.get_logger("coterie.server.driver")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the driver works with."""

    database: Database
    blobs: BlobStore
    rounds: Rounds
    workers: Workers
    plans: Plans
    board: Board
    metrics: Metrics
    bell: Bell
    attempts: Attempts


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one look at the rows found. at: when that was, in milliseconds; next_at: when something will be due next."""

    at: int
    late: Sequence[TaskRow]
    opened: Sequence[OpenRound]
    uncleaned: Sequence[RoundRow]
    standings: Sequence[Standing]
    next_at: int | None

    def pause_s(self) -> float:
        """How long nothing more will be due by itself."""
        if self.next_at is None:
            return LONGEST_SLEEP_S
        return min(max(self.next_at - now_ms(), 0) / 1000 + 0.001, LONGEST_SLEEP_S)


class Driver:
    """Runs from `run` until cancelled."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._jobs: dict[tuple[str, int, Phase], asyncio.Task[None]] = {}
        self._failures = Counter[tuple[str, int, Phase]]()

    async def run(self) -> None:
        """Keep moving. An error in one pass is logged and tried again a little later; it never ends the driver."""
        try:
            while True:
                ring = self._parts.bell.next_ring()
                try:
                    pause = await self._pass()
                except Exception as error:
                    log.error("pass failed", exc_info=error)
                    pause = RETRY_S
                await wait(ring, pause)
        finally:
            for job in self._jobs.values():
                job.cancel()
            await asyncio.gather(*self._jobs.values(), return_exceptions=True)
            await self._parts.attempts.close()

    async def _pass(self) -> float:
        """Do what is due, and say how long nothing more will be. A commit in between rings the bell."""
        seen = await self._look()
        if seen.late:
            await self._expire(seen.late)
            seen = await self._look()
        opened = [found for found in seen.opened if found.row.experiment not in self._parts.board.quarantined]
        for found in opened:
            if set_back.was_set_back(found, seen.at):
                await self._guarded(found.row, set_back.begin_anew(self._parts.database, found))
            if found.row.deadline_at is not None and found.row.deadline_at <= seen.at:
                await self._guarded(found.row, self._deadline(found))
            else:
                self._work(found)
        for row in seen.uncleaned:
            await self._guarded(row, self._clean(row))
        await self._parts.attempts.look(opened, seen.standings)
        return seen.pause_s()

    async def _look(self) -> Seen:
        """One transaction, for this runs after every commit."""
        now = now_ms()
        async with self._parts.database.read() as session:
            expiry = await tasks.next_expiry(session)
            late = await tasks.expired(session, now) if expiry is not None and expiry <= now else ()
            opened = await experiments.open_rounds(session)
            uncleaned = await experiments.uncleaned(session)
            standings = await attempts.under_way(session)
        times = (expiry, *(found.row.deadline_at for found in opened), *(each.deadline_at for each in standings))
        # What is due already is taken up in this pass, and rings when it is done, or is to be tried again.
        coming = [time for time in times if time is not None and time > now]
        return Seen(
            at=now,
            late=late,
            opened=opened,
            uncleaned=uncleaned,
            standings=standings,
            next_at=min(coming, default=None),
        )

    async def _guarded(self, row: RoundRow, work: Coroutine[Any, Any, None]) -> None:
        """Let the trouble of one experiment be no other's; what is due stays due, and is tried again a little later."""
        try:
            await work
        except Exception as error:
            log.error("round cannot go on yet", experiment=row.experiment, round=row.number, exc_info=error)
            asyncio.get_running_loop().call_later(RETRY_S, self._parts.bell.ring)

    async def _expire(self, late: Sequence[TaskRow]) -> None:
        async with self._parts.database.write("expire") as session:
            for task in late:
                changes = {"verdict": tasks.ROLLED_BACK, "finished_at": now_ms()}
                if await tasks.expire(session, task.id, now_ms(), changes):
                    await self._report_lost(session, task)

    async def _report_lost(self, session: AsyncSession, task: TaskRow) -> None:
        data = {"round": task.round, "task": task.id, "device": task.device, "kind": task.kind}
        events.append(session, "task.expired", data, task.experiment)
        await self._parts.rounds.lost(session, task)

    async def _deadline(self, found: OpenRound) -> None:
        async with self._parts.database.write("deadline") as session:
            opened = await self._same(session, found)
            if opened is None or opened.row.deadline_at is None or opened.row.deadline_at > now_ms():
                return
            kind = "train" if opened.row.deadline_kind == "train" else "evaluate"
            await self._parts.rounds.apply(session, opened, DeadlinePassed(kind), {"deadline_at": None})

    async def _same(self, session: AsyncSession, found: OpenRound) -> OpenRound | None:
        """The round as it is now, if it is still in the phase that it was found in."""
        opened = await experiments.open_round(session, found.row.experiment)
        same = opened is not None and opened.row.number == found.row.number and opened.value.phase is found.value.phase
        return opened if same else None

    def _work(self, found: OpenRound) -> None:
        """Start what is due for a round and takes time, unless it is already under way."""
        due: dict[Phase, Callable[[OpenRound], Awaitable[None]]] = {
            Phase.AGGREGATING: self._aggregate,
            Phase.EVALUATING: self._evaluate,
            Phase.COMMITTING: self._commit,
        }
        act = due.get(found.value.phase)
        key = (found.row.experiment, found.row.number, found.value.phase)
        if act is None or key in self._jobs or (found.value.phase is Phase.EVALUATING and found.value.central_done):
            return
        if summed_now(found) is not None:
            return  # its attempts are driven by themselves

        async def job() -> None:
            place = {"experiment": key[0], "round": key[1], "phase": key[2].value}
            pause = min(RETRY_S * 2 ** self._failures[key], LONGEST_SLEEP_S)
            try:
                await act(found)
                self._failures.pop(key, None)
            except Exception as error:
                self._failures[key] += 1
                ours = isinstance(error, CoterieError)
                told = {"why": error.message, "hint": error.hint} if ours else {"exc_info": error}
                log.error("round cannot go on yet", **place, again_s=pause, **told)
                await asyncio.sleep(pause)
            finally:
                self._jobs.pop(key, None)
                self._parts.bell.ring()

        self._jobs[key] = asyncio.create_task(job(), name=f"{key[2].value} {key[0]} {key[1]}")

    async def _aggregate(self, found: OpenRound) -> None:
        experiment, number = found.row.experiment, found.row.number
        async with self._parts.database.read() as session:
            row = await experiments.find(session, experiment)
            accepted = await tasks.accepted(session, experiment, number)
        if row is None:
            return
        out = self._parts.blobs.scratch_file(f"job-{experiment}-{number}")
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        answers = found.row.upstream is not None
        try:
            if answers:
                arguments = await self._accumulate_arguments(found, row, accepted, out)
            else:
                central = await self._paid(found, row)
                if central is None:
                    return
                arguments = inputs.aggregation(self._parts.blobs, found, row, accepted, out)
                arguments["central"] = central or None
            result = await self._parts.workers.run("accumulate" if answers else "aggregate", arguments)
        except WorkerLost:
            raise
        except JobFailed as error:
            if error.details.get("refused") == DAMAGED:
                log.error("a round has no base", experiment=experiment, round=number, why=error.message)
                self._parts.metrics.damaged.inc()
            await self._step("aggregate_failed", found, AggregateFailed(error.message, error.details.get("refused")))
            return
        else:
            await (self._keep_accumulator(found, result) if answers else self._keep_result(found, result))
        finally:
            shutil.rmtree(out, ignore_errors=True)

    async def _paid(self, found: OpenRound, row: ExperimentRow) -> dict[str, Any] | None:
        """What the coordinator's own noise needs, its cost spent durably before the job that could make a noised value
        begins; empty where the coordinator adds none, None where the round has ended meanwhile. The seed is in nobody's
        log, and the same however often this runs.
        """
        request = experiments.request_of(row)
        if not noised_here(request):
            return {}
        spending = self._parts.rounds.spending
        async with self._parts.database.write("spent") as session:
            if await self._same(session, found) is None:
                return None
            seed = await spending.pay(session, row, found.value.number)
        async with self._parts.database.read() as session:
            await spending.foresee(session, row, found.value.number + 1)
        return {
            "privacy": None if request.privacy is None else request.privacy.model_dump(mode="json"),
            "round": found.value.number,
            "rounds": request.rounds.rounds,
            "expected": request.rounds.cohort,
            "seed": seed.hex(),
        }

    async def _keep_result(self, found: OpenRound, result: dict[str, Any]) -> None:
        """Make the new version and the server's state durable, then say so."""
        weights, state, rejected = result["weights"], result["state"], result["rejected"]
        await self._parts.blobs.put("blobs", weights["sha256"], Path(weights["path"]), point="result")
        if state is not None:
            await self._parts.blobs.put("blobs", state["sha256"], Path(state["path"]), point="result")
        async with self._parts.database.write("aggregated") as session:
            opened = await self._same(session, found)
            if opened is None:
                return
            await blob_rows.keep(session, weights["sha256"], weights["size"], "model")
            if state is not None:
                await blob_rows.keep(session, state["sha256"], state["size"], "state")
            self._tell_damaged(found, rejected)
            for entry in rejected:
                await tasks.reject(session, entry["task"], entry["code"], entry["message"])
            event = AggregateReady(weights["sha256"], result["metrics"], len(rejected))
            changes = {"aggregate": weights["sha256"], "server_state": state["sha256"] if state else None}
            self._parts.rounds.traffic.use(opened.row.experiment, [weights["sha256"]])
            await self._parts.rounds.apply(session, opened, event, changes)

    async def _accumulate_arguments(
        self, found: OpenRound, row: ExperimentRow, accepted: Sequence[TaskRow], out: Path
    ) -> dict[str, Any]:
        async with self._parts.database.read() as session:
            above = await upstream.find(session, found.row.upstream or "")
        if above is None:
            raise InternalError(f"Round {found.row.number} of {row.id} answers a task that has no row.")
        terms = upstream.terms(above)
        return {
            "blobs": self._parts.blobs.files.to_json(),
            "manifest": row.plan,
            "task": above.id,
            "base": found.value.base,
            "reducer": terms.reducer,
            "min_clients": above.min_clients,
            "max_clients": terms.max_clients,
            "updates": inputs.updates(accepted),
            "weight_cap": upstream.message(above).weight_cap,
            "out": str(out),
        }

    async def _keep_accumulator(self, found: OpenRound, result: dict[str, Any]) -> None:
        """Make an edge aggregator's answer durable, then say so. It is no version: the round keeps the one it had."""
        file = result["accumulator"]
        await self._parts.blobs.put("updates", file["sha256"], Path(file["path"]), point="accumulator")
        async with self._parts.database.write("aggregated") as session:
            opened = await self._same(session, found)
            if opened is None:
                return
            self._tell_damaged(found, result["rejected"])
            for entry in result["rejected"]:
                await tasks.reject(session, entry["task"], entry["code"], entry["message"])
            await upstream.keep(session, opened.row.upstream or "", file["sha256"])
            event = AggregateReady(opened.value.base, result["metrics"], len(result["rejected"]))
            await self._parts.rounds.apply(session, opened, event, {"aggregate": file["sha256"]})

    def _tell_damaged(self, found: OpenRound, rejected: Sequence[dict[str, Any]]) -> None:
        for entry in rejected:
            if entry["code"] == DAMAGED:
                place = {"experiment": found.row.experiment, "round": found.row.number, "task": entry["task"]}
                log.error("a stored update is damaged", **place, why=entry["message"])
                self._parts.metrics.damaged.inc()

    async def _evaluate(self, found: OpenRound) -> None:
        async with self._parts.database.read() as session:
            row = await experiments.find(session, found.row.experiment)
        if row is None:
            return
        request = experiments.request_of(row)
        manifest = await self._parts.plans.manifest(row.plan)
        arguments = {
            "blobs": self._parts.blobs.files.to_json(),
            "manifest": row.plan,
            "graphs": {stage.name: stage.sha256 for stage in manifest.stages if stage.over == "pass"},
            "weights": found.value.version or "",
            "frozen": request.frozen.sha256 if request.frozen else None,
            "data": request.evaluation.sha256 if request.evaluation else "",
            "metrics": list(request.evaluation_metrics),
        }
        try:
            event = Evaluated((await self._parts.workers.run("evaluate", arguments))["metrics"])
        except WorkerLost:
            raise
        except JobFailed as error:
            event = Evaluated(None, error.message)
        await self._step("evaluated", found, event)

    async def _commit(self, found: OpenRound) -> None:
        await self._step("commit", found, Committed())

    async def _step(self, point: str, found: OpenRound, event: Event) -> None:
        async with self._parts.database.write(point) as session:
            opened = await self._same(session, found)
            if opened is not None:
                await self._parts.rounds.apply(session, opened, event)

    async def _clean(self, row: RoundRow) -> None:
        """Delete the update blobs of a round that has ended, and what was begun of uploads whose tasks are not out any
        more, whatever round handed them out; a crash in between only means doing it again.
        """
        experiment, number = row.experiment, row.number
        begun = (
            await self._parts.blobs.parts.tasks()
        )  # before the rows: whose task is not out then will never be resumed
        async with self._parts.database.read() as session:
            digests = {
                *await tasks.uploads(session, experiment, number),
                *await attempts.masked_uploads(session, experiment, number),
            }
            out = await tasks.leased(session) | await attempts.uploading(session) if begun else frozenset[str]()
            sums = [attempt.id for attempt in await attempts.of_round(session, experiment, number)]
        for task in begun:
            if task not in out:
                await self._parts.blobs.parts.drop(task)
        for attempt in sums:
            self._parts.attempts.forget(attempt)
        await self._parts.blobs.delete_updates(sorted(digests))
        async with self._parts.database.write("cleanup") as session:
            await attempts.forget(session, experiment, number)
            await experiments.cleaned(session, experiment, number)
        self._parts.metrics.rounds.labels(row.phase).inc()
        log.info("round ended", experiment=experiment, round=number, outcome=row.phase, why=row.cause)
