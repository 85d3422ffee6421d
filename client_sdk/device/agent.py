"""The device's loop: check in, take a task, train, upload, settle, wait.

Every step leaves a durable fact in the store (`coterie.client_sdk.device.store`) before the next begins, so an agent
killed at any point goes on where it was: a leased task is trained again to the same bytes, a finished update is
uploaded as it was written, an acknowledged one is never sent twice, and client state changes only when a check-in says
that the round counted the update.
"""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from threading import Event as Flag
from typing import Any, Final

from coterie.client_sdk.device.backoff import Window, after_answer, after_failure
from coterie.client_sdk.device.blobs import BlobCache
from coterie.client_sdk.device.faults import DeviceFaults
from coterie.client_sdk.device.idleness import Idleness
from coterie.client_sdk.device.membership import Membership, capabilities, data_report, first_signers, join
from coterie.client_sdk.device.preview import DryRun, nothing, preview
from coterie.client_sdk.device.runner import TaskRunner
from coterie.client_sdk.device.saved import CHECK_IN, SUMMARY, TASK, UPLOAD, VECTOR, check_free
from coterie.client_sdk.device.saved import save as write
from coterie.client_sdk.device.settings import AgentSettings, RunSummary
from coterie.client_sdk.device.signed import SignedLink
from coterie.client_sdk.device.store import DeviceStore
from coterie.client_sdk.device.trainers.base import Stopped
from coterie.client_sdk.device.work import prepare, work
from coterie.client_sdk.http import JSON, Link, is_transient, parsed
from coterie.errors import (
    ConfigurationError,
    RemoteError,
)
from coterie.privacy.secagg.ring import WORD
from coterie.protocol.canonical import canonical_json, parse_json
from coterie.protocol.conversion import to_json
from coterie.protocol.device import CheckIn, CheckInResponse, Idle, RetryWindow, Task
from coterie.protocol.wire import read_message

_NOT_A_MEMBER: Final = frozenset(("device_unknown", "device_revoked"))


class Agent:
    """A device. Use `run`, or `cycle` for one turn of the loop; `close` when done.

    Raises ConfigurationError when another process uses the folder.
    """

    def __init__(self, settings: AgentSettings) -> None:
        _check_provider(settings)
        self.settings = settings
        self.summary = RunSummary()
        self._faults = DeviceFaults.from_environment()
        self._link = Link(settings.url, ca=settings.ca, transport=settings.transport)
        self.store = DeviceStore(settings.folder)
        self._blobs = BlobCache(self.store.cache, self._link, reached=self._faults.reach)
        self._capabilities = capabilities(settings.policy, external=settings.trainer is not None)
        self._stop = Flag()
        self._awake = asyncio.Event()
        self._runner: TaskRunner | None = None
        self._window: Window | None = None
        self._idleness = Idleness()

    async def close(self) -> None:
        """Release the folder and the connections, and end the processes that shared trainings."""
        if self._runner is not None:
            self._runner.close()
        self.store.close()
        await self._link.close()

    def stop(self) -> None:
        """Make `run` return soon: after the current request or training step. Call it in the loop's own thread."""
        self.stop_training()
        self._awake.set()

    def stop_training(self) -> None:
        """Make a training in progress end after its current step. Safe in any thread."""
        self._stop.set()

    async def join(self) -> Membership:
        """Join the population; see `coterie.client_sdk.device.membership.join`."""
        return (await self._join_once()).membership

    async def _join_once(self) -> TaskRunner:
        if self._runner is None:
            settings = self.settings
            membership = await join(
                self._link,
                self.store,
                data=settings.data,
                token=settings.token,
                name=settings.name,
                capabilities=self._capabilities,
                faults=self._faults,
                endorsement=settings.endorsement,
            )
            signed = SignedLink(self._link, key=self.store.key, device_id=membership.device_id, nonce=membership.nonce)
            self._runner = TaskRunner(
                settings=settings,
                membership=membership,
                store=self.store,
                blobs=self._blobs,
                requests=signed,
                faults=self._faults,
                summary=self.summary,
                emit=self._emit,
                stop=self._stop,
                trainer=settings.trainer,
            )
            self._emit(
                "joined", device=membership.device_id, population=membership.population, examples=membership.examples
            )
        return self._runner

    async def run(self, *, rounds: int | None = None) -> RunSummary:
        """Join and work until `stop`, or until ``rounds`` training updates of this run have settled.

        Failures to reach the coordinator are waited out for ever, also before joining. Raises ConfigurationError,
        DataError, and errors that waiting cannot mend: a device that is revoked, a disk that is full, three tasks
        failing one after another (what the device's policy refuses and training that diverges are no failures).
        """
        failures, before = 0, self._settled_count()
        while not self._stop.is_set():
            if rounds is not None and self._settled_count() - before >= rounds:
                break
            try:
                await self.join()
                pause = await self.cycle()
                reason = self._idleness.why or "window"
                failures = 0
            except RemoteError as error:
                if not is_transient(error):
                    raise
                failures += 1
                retry_after = float(error.details.get("retry_after_s") or 0.0)
                pause = after_failure(
                    failures, self.settings.backoff, self.settings.rng, window=self._window, retry_after_s=retry_after
                )
                reason = error.reason
                self._emit("error", code=error.reason, message=error.message, hint=error.hint)
            except Stopped:
                break
            except asyncio.CancelledError:
                # Training goes on in its thread until it looks at the flag.
                self._stop.set()
                raise
            if not self._stop.is_set():
                self._emit("waiting", seconds=round(pause, 3), reason=reason)
                await self._sleep(pause)
        self.summary.bytes_up, self.summary.bytes_down = self._link.bytes_up, self._link.bytes_down
        self._emit("stopped")
        return self.summary

    def _settled_count(self) -> int:
        return self.summary.counted + self.summary.rolled_back

    async def cycle(self) -> float:
        """One turn: finish the task in flight, or check in, settle and do the task that is assigned. Returns the
        seconds to wait.

        Raises RemoteError (the task in flight stays in flight when the failure is transient), and what `run` says.
        """
        runner = await self._join_once()
        in_flight, resumed = self.store.in_flight(), True
        accepted, rejected = self._windows()
        if in_flight is None:
            answer = await self._check_in(runner)
            accepted, rejected = answer.retry_if_accepted, answer.retry_if_rejected
            self._window = _window(rejected)
            self._settle(answer)
            if answer.task is None:
                return self._seconds_idle(answer.idle or "no_place", _window(rejected))
            self._idleness.over()
            resumed = self.store.state_of(answer.task.id) is not None
            self._lease(answer.task)
            in_flight = self.store.in_flight()
        if in_flight is None:
            return after_answer(_window(rejected), self.settings.rng)
        runner.membership = await first_signers(self._link, self.store, runner.membership, self.settings.token)
        done = await runner.perform(in_flight, resumed=resumed)
        return after_answer(_window(accepted if done else rejected), self.settings.rng)

    def _seconds_idle(self, why: Idle, window: Window) -> float:
        """Tell the owner once why there is nothing to do. Returns the seconds to wait."""
        now = time.monotonic()
        if self._idleness.news(why, now):
            self._emit("idle", reason=why)
        drawn = after_answer(window, self.settings.rng)
        # What became of an update is asked for as soon as the coordinator likes.
        return drawn if self.store.pending() else self._idleness.pause(drawn, now, self.settings.rng)

    async def dry_run(self, save: Path | None = None) -> DryRun:
        """Join, check in, do one task, and show what would leave instead of sending it; the task is then given back.

        Enrolling and the check-in are real: they tell the coordinator this device's public key, its capabilities and
        that it was here. A task that is in flight is shown and stays in flight.
        save: a folder, absent or empty, for the exact bytes of the check-in and of the update
            (`coterie.client_sdk.device.saved`).
        Raises what `cycle` raises, InputError (``folder_exists``).
        """
        if save is not None:
            check_free(save)
        shown, files = await self._run_dry()
        if save is None:
            return shown
        shown = replace(shown, saved=tuple(str(save / name) for name in (*files, SUMMARY)))
        write(save, {**files, SUMMARY: canonical_json(to_json(shown))})
        return shown

    async def _run_dry(self) -> tuple[DryRun, dict[str, bytes]]:
        """What a dry run shows, and its files by name."""
        runner = await self._join_once()
        membership = runner.membership
        in_flight = self.store.in_flight()
        # What a check-in says is made before one: its answer may settle what it names.
        files = {CHECK_IN: self._check_in_body(runner)}
        if in_flight is not None:
            task = Task.model_validate(parse_json(in_flight.message.encode()))
        else:
            answer = await self._check_in(runner)
            self._settle(answer)
            if answer.task is None:
                return nothing(membership), files
            task = answer.task
        try:
            await runner.check_lineage(task)
            key = "" if in_flight is None else in_flight.release
            prepared = await prepare(
                task, membership, self.settings.policy, self._blobs, runner.ledger, key=key, kinds=runner.kinds
            )
            client_state = runner.client_state(task)
            trainer = runner.chosen_trainer()
            await asyncio.to_thread(trainer.check, prepared.plan, task.kind, self.settings.policy.threads)
            try:
                finished = await asyncio.to_thread(
                    work, prepared, membership, self.settings.policy, trainer, client_state
                )
            finally:
                runner.hear_of_providers()
            files[TASK] = task.model_dump_json(exclude_unset=True).encode()
            if finished.vector is not None:
                files[VECTOR] = finished.vector.astype(WORD, copy=False).tobytes()
            elif in_flight is not None and in_flight.state == "stored":
                files[UPLOAD] = self.store.update_path(task.id).read_bytes()
            else:
                files[UPLOAD] = finished.update
            return preview(membership, prepared, finished), files
        finally:
            if in_flight is None:
                await runner.abort(task, "encoding", "dry_run", "")

    def _check_in_body(self, runner: TaskRunner) -> bytes:
        data = data_report(runner.membership) if self.settings.policy.reveal_data else None
        message = CheckIn(pending=tuple(self.store.pending()[:64]), data=data, capabilities=self._capabilities)
        return canonical_json(message.model_dump(mode="json"))

    async def _check_in(self, runner: TaskRunner) -> CheckInResponse:
        body, headers = self._check_in_body(runner), {"Content-Type": JSON}
        try:
            value = parsed(await runner.requests.request("POST", "/v1/device/check-in", body=body, headers=headers))
        except RemoteError as error:
            if error.reason not in _NOT_A_MEMBER:
                raise
            raise ConfigurationError(
                f"The coordinator at {self._link.url} does not work with this device: {error.message}",
                hint=f"If {self.store.folder} is of another coordinator, choose another folder; else ask the operator.",
                code=error.reason,
            ) from error
        self._faults.reach("checked_in")
        return read_message(CheckInResponse, value)

    def _settle(self, answer: CheckInResponse) -> None:
        for task, outcome in self.store.settle(answer.settled).items():
            if outcome == "counted":
                self.summary.counted += 1
            else:
                self.summary.rolled_back += 1
            self._emit("settled", task=task, outcome=outcome)
        self._faults.reach("settled")

    def _lease(self, task: Task) -> None:
        message = task.model_dump_json(exclude_unset=True)
        self.store.lease(task=task.id, experiment=task.experiment, round=task.round, kind=task.kind, message=message)
        self._emit("task", task=task.id, experiment=task.experiment, round=task.round, kind=task.kind)
        self._faults.reach("leased")

    def _windows(self) -> tuple[RetryWindow, RetryWindow]:
        start, end = (0.0, 0.0) if self._window is None else (self._window.start_s, self._window.end_s)
        window = RetryWindow(min_ms=int(start * 1000), max_ms=int(end * 1000))
        return window, window

    async def _sleep(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._awake.wait(), seconds)
        except TimeoutError:
            pass

    def _emit(self, event: str, **fields: Any) -> None:
        self.settings.on_event({"event": event, **fields})


def _check_provider(settings: AgentSettings) -> None:
    """Raise ConfigurationError (``policy_conflict``) for a choice of provider that a trainer of one's own passes by."""
    if settings.trainer is not None and settings.policy.provider != "cpu":
        raise ConfigurationError(
            f"{settings.policy.where('provider')} says {settings.policy.provider!r}, but your own trainer does not "
            "use execution providers: they run the plan's graphs only.",
            hint="Leave out the provider, or the trainer.",
            code="policy_conflict",
        )


def _window(window: RetryWindow) -> Window:
    return Window(window.min_ms / 1000, window.max_ms / 1000)
