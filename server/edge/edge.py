"""The edge aggregator's loop: check in above, turn a task into a round here, send its answer, pass verdicts down.

Like the driver it holds no state that a restart could lose: what it has to do next follows from the rows, each step is
one transaction, and repeating a request above is harmless. It leases one task at a time; answers whose verdict is still
out do not keep it from the next one.
"""

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from coterie.aggregation.engine import StopRequested
from coterie.aggregation.progress import Reason
from coterie.aggregation.round import Cause
from coterie.client_sdk.device.backoff import Backoff, Window, after_answer, after_failure
from coterie.client_sdk.device.blobs import BlobCache
from coterie.client_sdk.device.upload import upload
from coterie.client_sdk.http import Link, is_transient
from coterie.errors import CoterieError, RemoteError
from coterie.protocol.device import Abort, CheckIn, CheckInResponse, Progress, RetryWindow, Task
from coterie.protocol.wire import read_message
from coterie.server.bell import Bell, wait
from coterie.server.edge.membership import CAPABILITIES, EdgeMembership, join
from coterie.server.edge.mirror import Mirror
from coterie.server.rounds import answer
from coterie.server.rounds.transitions import Rounds
from coterie.server.settings import Settings
from coterie.server.storage import Storage
from coterie.server.store import experiments, upstream
from coterie.server.store.tables import UpstreamTaskRow

OVER: Final = frozenset(("task_unknown", "task_finished", "lease_expired", "round_closed", "stale_update"))
"""Answers after which nothing more can come of a task."""
HEARTBEATS_PER_LEASE: Final = 3
LONGEST_BEAT_S: Final = 10.0
"""A round that nobody above waits for any more shall not go on for long."""
MOST_NAMED: Final = 64
LONGEST_SLEEP_S: Final = 60.0
log = structlog.get_logger("coterie.server.edge")


@dataclass(kw_only=True)
class Edge:
    """Runs from `run` until cancelled.

    link: to the coordinator above.
    """

    settings: Settings
    storage: Storage
    rounds: Rounds
    bell: Bell
    link: Link
    backoff: Backoff = field(default_factory=lambda: Backoff(cap_s=60.0))
    rng: random.Random = field(default_factory=random.SystemRandom)
    _member: EdgeMembership | None = None
    _window: Window = Window(0.0, 0.0)
    _check_in_at: float = 0.0
    _beat_at: float = 0.0

    async def run(self) -> None:
        """Keep going. A coordinator above that does not answer is waited for; an error is logged and tried again."""
        failures = 0
        while True:
            ring = self.bell.next_ring()
            try:
                pause = await self._pass()
                failures = 0
            except CoterieError as error:
                failures += 1
                transient = isinstance(error, RemoteError) and is_transient(error)
                tell = log.warning if transient else log.error
                tell("edge cannot go on yet", code=error.reason, why=error.message, hint=error.hint)
                pause = after_failure(failures, self.backoff, self.rng, window=self._window)
                await asyncio.sleep(pause)
                continue
            except Exception as error:
                failures += 1
                log.error("edge cannot go on yet", exc_info=error)
                await asyncio.sleep(after_failure(failures, self.backoff, self.rng, window=self._window))
                continue
            await wait(ring, pause)

    async def _pass(self) -> float:
        """Do what is due. Returns the seconds until something may be due again; the bell may ring before."""
        if self._member is None:
            self._member = await join(
                self.storage.database, self.link, self.settings.upstream_token, self.settings.edge_name
            )
            log.info("edge joined", upstream=self.link.url, device=self._member.device)
        async with self.storage.database.read() as session:
            task = await upstream.at_work(session)
            waits = bool(await upstream.pending(session, 1))
        if task is not None and task.state != upstream.LEASED:
            await (self._send(self._member, task) if task.state == upstream.READY else self._give_up(task))
            return 0.0
        now = time.monotonic()
        if (task is None or waits) and now >= self._check_in_at:
            if await self._check_in(self._member, task):
                return 0.0
        if task is not None and now >= self._beat_at:
            await self._beat(self._member, task)
        times = [LONGEST_SLEEP_S + now]
        times += [self._check_in_at] if task is None or waits else []
        times += [self._beat_at] if task is not None else []
        return max(min(times) - time.monotonic(), 0.0)

    async def _check_in(self, member: EdgeMembership, current: UpstreamTaskRow | None) -> bool:
        """Ask for a task, and what became of the answers. Returns whether a round began.

        current: the task that a round here is at; another one means that nobody above waits for it any more.
        """
        async with self.storage.database.read() as session:
            waiting = {row.id: row for row in await upstream.pending(session, MOST_NAMED)}
            named = await upstream.experiments(session, MOST_NAMED)
        message = CheckIn(pending=tuple(waiting), experiments=tuple(named), capabilities=CAPABILITIES)
        value = await member.signed.json("POST", "/v1/device/check-in", message.model_dump(mode="json"))
        response = read_message(CheckInResponse, value)
        self._come_back(response.retry_if_rejected)
        if response.settled or response.ended:
            await self._settle(waiting, frozenset(named), response)
        if response.task is None:
            return False
        if current is not None:
            if response.task.id != current.id:
                self._beat_at = 0.0
            return False
        try:
            return await self._take(member, response.task)
        except CoterieError as error:
            if isinstance(error, RemoteError) and is_transient(error):
                raise
            log.error("task refused", task=response.task.id, code=error.reason, why=error.message, hint=error.hint)
            await self._abort(member, response.task.id, "checking", error.reason, error.message)
            return False

    async def _take(self, member: EdgeMembership, task: Task) -> bool:
        cache = BlobCache(self._cache_folder(), self.link)
        mirror = Mirror(self.settings, self.storage, self.rounds, cache)
        begun = await mirror.take(member, task)
        self._beat_at = time.monotonic() + self._beat_every(task)
        return begun

    async def _settle(
        self, waiting: dict[str, UpstreamTaskRow], named: frozenset[str], response: CheckInResponse
    ) -> None:
        """Pass the verdicts of the coordinator above down, and end what is over there; only what it was asked about."""
        over = named.intersection(response.ended)
        settled = {waiting[task].experiment for task in response.settled if task in waiting}
        async with self.storage.database.write("settled") as session:
            locked = await experiments.lock_all(session, over | settled)
            for task, verdict in response.settled.items():
                if task in waiting:
                    await answer.settle(session, waiting[task], verdict)
            for name in sorted(over):
                row, opened = locked[name].experiment, locked[name].opened
                if opened is not None:
                    gone = StopRequested(Cause.WITHDRAWN, "the upstream experiment has ended")
                    await self.rounds.apply(session, row, opened, gone)
                if row.state == experiments.RUNNING:
                    self.rounds.finish_mirrored(session, row, Reason.COMPLETED)

    async def _beat(self, member: EdgeMembership, task: UpstreamTaskRow) -> None:
        """Say above that the round goes on; end it when it is not wanted any more."""
        message = upstream.message(task)
        self._beat_at = time.monotonic() + self._beat_every(message)
        phase = Progress(phase="training" if message.kind == "train" else "evaluating").model_dump(mode="json")
        try:
            await member.signed.json("POST", f"/v1/device/tasks/{task.id}/progress", phase)
        except RemoteError as error:
            if error.reason not in OVER:
                raise
            await self._withdraw(task, error)

    async def _withdraw(self, task: UpstreamTaskRow, error: RemoteError) -> None:
        async with self.storage.database.write("withdrawn") as session:
            locked = await experiments.lock(session, task.experiment)
            opened = locked.opened
            if opened is not None and opened.row.upstream == task.id:
                gone = StopRequested(Cause.WITHDRAWN, f"{error.reason}: {error.message}")
                await self.rounds.apply(session, locked.experiment, opened, gone)
            await upstream.move(session, task.id, upstream.TOLD, detail=error.reason)

    async def _send(self, member: EdgeMembership, task: UpstreamTaskRow) -> None:
        """Send the answer of a round, or learn that nobody wants it any more."""
        data = await self._answer(task)
        try:
            await upload(member.signed, task.id, data, resume=True)
        except RemoteError as error:
            if is_transient(error):
                raise
            log.error("answer refused", task=task.id, code=error.reason, why=error.message)
            async with self.storage.database.write("answered") as session:
                await experiments.lock(session, task.experiment)
                await answer.settle(session, task, upstream.REFUSED, detail=f"{error.reason}: {error.message}")
        else:
            async with self.storage.database.write("answered") as session:
                await upstream.move(session, task.id, upstream.PENDING if task.upload else upstream.COUNTED)
        if task.upload is not None:
            await self.storage.blobs.delete("updates", [task.upload])
        self._check_in_at = time.monotonic() + after_answer(self._window, self.rng)

    async def _answer(self, task: UpstreamTaskRow) -> bytes:
        if task.upload is not None:
            return await asyncio.to_thread(self.storage.blobs.reader.read, "updates", task.upload, "an accumulator")
        return answer.evaluation(task, await self.storage.plans.manifest(upstream.message(task).plan.id))

    async def _give_up(self, task: UpstreamTaskRow) -> None:
        """Tell above that no answer comes, so that somebody else gets the task."""
        if self._member is None:
            return
        message = upstream.message(task)
        phase = "training" if message.kind == "train" else "evaluating"
        code, _, detail = (task.detail or "").partition(": ")
        await self._abort(self._member, task.id, phase, code or "edge_failed", detail)
        async with self.storage.database.write("told") as session:
            await upstream.move(session, task.id, upstream.TOLD)
        if task.upload is not None:
            await self.storage.blobs.delete("updates", [task.upload])

    async def _abort(self, member: EdgeMembership, task: str, phase: str, code: str, detail: str) -> None:
        message = Abort.model_validate({"phase": phase, "code": code, "detail": detail[:2000]})
        try:
            await member.signed.json("POST", f"/v1/device/tasks/{task}/abort", message.model_dump(mode="json"))
        except RemoteError as error:
            if is_transient(error):
                raise

    def _come_back(self, window: RetryWindow) -> None:
        self._window = Window(window.min_ms / 1000, window.max_ms / 1000)
        self._check_in_at = time.monotonic() + after_answer(self._window, self.rng)

    def _beat_every(self, task: Task) -> float:
        return min(max(task.lease_ms / 1000 / HEARTBEATS_PER_LEASE, 0.5), LONGEST_BEAT_S)

    def _cache_folder(self) -> Any:
        folder = self.storage.blobs.scratch_file("upstream")
        folder.mkdir(exist_ok=True)
        return folder
