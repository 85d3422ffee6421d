"""The device's loop: check in, take a task, train, upload, settle, wait.

Every step leaves a durable fact in the store (`coterie.client_sdk.device.store`) before the next begins, so an agent
killed at any point goes on where it was: a leased task is trained again to the same bytes, a finished update is
uploaded as it was written, an acknowledged one is never sent twice, and client state changes only when a check-in says
that the round counted the update.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Flag
from typing import Any, Final

from coterie.client_sdk.device.backoff import Backoff, Window, after_answer, after_failure
from coterie.client_sdk.device.blobs import BlobCache
from coterie.client_sdk.device.data import DataSource
from coterie.client_sdk.device.faults import Faults
from coterie.client_sdk.device.membership import Membership, capabilities, join
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.preview import DryRun, nothing, preview
from coterie.client_sdk.device.signed import SignedLink
from coterie.client_sdk.device.store import InFlight, Store
from coterie.client_sdk.device.trainers.base import Stopped, Trainer
from coterie.client_sdk.device.upload import PIECE, upload
from coterie.client_sdk.device.work import Finished, check_assignment, prepare, work
from coterie.client_sdk.http import Link, is_transient
from coterie.client_sdk.lean_httpx import httpx
from coterie.errors import (
    ConfigurationError,
    CoterieError,
    InputError,
    PlanRefused,
    PolicyRefused,
    RemoteError,
    StorageError,
)
from coterie.protocol.canonical import parse_json, sha256_hex
from coterie.protocol.device import Abort, CheckIn, CheckInResponse, Progress, RetryWindow, Task
from coterie.protocol.wire import read_message

Listener = Callable[[Mapping[str, Any]], None]

# A device that fails task after task wastes leases that others could use.
MOST_FAILURES: Final = 3
HEARTBEATS_PER_LEASE: Final = 3
# Answers after which nothing more can come of a task.
_OVER: Final = frozenset(("task_unknown", "task_finished", "lease_expired", "round_closed"))
_NOT_A_MEMBER: Final = frozenset(("device_unknown", "device_revoked"))


@dataclass(kw_only=True)
class RunSummary:
    """What a run did.

    trained and evaluated: updates acknowledged. counted and rolled_back: training updates settled. failed: tasks given
    up.
    """

    trained: int = 0
    evaluated: int = 0
    counted: int = 0
    rolled_back: int = 0
    failed: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def to_json(self) -> dict[str, int]:
        """The counts by name."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """Where an agent works and how.

    url: of the coordinator. folder: of its store. token: for enrolment. name: for people. ca: PEM of the coordinator's
    authority.
    trainer: None for the plan trainer. transport, sleep, rng: the seams for tests.
    """

    url: str
    data: DataSource
    folder: Path
    token: str | None = None
    name: str | None = None
    trainer: Trainer | None = None
    policy: DevicePolicy = field(default_factory=DevicePolicy)
    backoff: Backoff = field(default_factory=Backoff)
    ca: str | Path | None = None
    on_event: Listener = lambda event: None
    transport: httpx.AsyncBaseTransport | None = None
    rng: random.Random = field(default_factory=random.SystemRandom)
    piece: int = PIECE


class Agent:
    """A device. Use `run`, or `cycle` for one turn of the loop; `close` when done.

    Raises ConfigurationError when another process uses the folder.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self.summary = RunSummary()
        self._faults = Faults.from_environment()
        self._link = Link(settings.url, ca=settings.ca, transport=settings.transport)
        self.store = Store(settings.folder)
        self._blobs = BlobCache(self.store.cache, self._link, reached=self._faults.reach)
        self._trainer = settings.trainer
        self._capabilities = capabilities(settings.policy, external=settings.trainer is not None)
        self._stop = Flag()
        self._awake = asyncio.Event()
        self._failures_in_a_row = 0
        self.membership: Membership | None = None
        self._signed: SignedLink | None = None
        self._window: Window | None = None

    async def close(self) -> None:
        """Release the folder and the connections."""
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
        if self.membership is None:
            settings = self.settings
            membership = await join(
                self._link,
                self.store,
                data=settings.data,
                token=settings.token,
                name=settings.name,
                capabilities=self._capabilities,
                faults=self._faults,
            )
            self.membership = membership
            self._signed = SignedLink(
                self._link, key=self.store.key, device_id=membership.device_id, nonce=membership.nonce
            )
            self._emit(
                "joined", device=membership.device_id, population=membership.population, examples=membership.examples
            )
        return self.membership

    async def run(self, *, rounds: int | None = None) -> RunSummary:
        """Join and work until `stop`, or until ``rounds`` training updates of this run have settled.

        Failures to reach the coordinator are waited out for ever, also before joining. Raises ConfigurationError,
        DataError, and errors that waiting cannot mend: a device that is revoked, a disk that is full, three tasks
        failing one after another.
        """
        failures = 0
        while not self._stop.is_set():
            settled = self.summary.counted + self.summary.rolled_back
            if rounds is not None and settled >= rounds:
                break
            try:
                await self.join()
                pause, reason = await self.cycle(), "window"
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

    async def cycle(self) -> float:
        """One turn: finish the task in flight, or check in, settle and do the task that is assigned. Returns the
        seconds to wait.

        Raises RemoteError (the task in flight stays in flight when the failure is transient), and what `run` says.
        """
        membership = await self.join()
        in_flight, resumed = self.store.in_flight(), True
        accepted, rejected = self._windows()
        if in_flight is None:
            answer = await self._check_in()
            accepted, rejected = answer.retry_if_accepted, answer.retry_if_rejected
            self._window = _window(rejected)
            self._settle(answer)
            if answer.task is None:
                return after_answer(_window(rejected), self.settings.rng)
            resumed = self.store.state_of(answer.task.id) is not None
            self._lease(answer.task)
            in_flight = self.store.in_flight()
        if in_flight is None:
            return after_answer(_window(rejected), self.settings.rng)
        done = await self._perform(in_flight, membership, resumed=resumed)
        return after_answer(_window(accepted if done else rejected), self.settings.rng)

    async def dry_run(self) -> DryRun:
        """Join, check in, do one task, and show what would leave instead of sending it; the task is then given back.

        Enrolling and the check-in are real: they tell the coordinator this device's public key, its capabilities and
        that it was here. A task that is in flight is shown and stays in flight. Raises what `cycle` raises.
        """
        membership = await self.join()
        in_flight = self.store.in_flight()
        if in_flight is not None:
            task = Task.model_validate(parse_json(in_flight.message.encode()))
        else:
            answer = await self._check_in()
            self._settle(answer)
            if answer.task is None:
                return nothing(membership)
            task = answer.task
        try:
            prepared = await prepare(task, membership, self.settings.policy, self._blobs)
            client_state = self.store.client_state(task.experiment)
            trainer = self._chosen_trainer()
            finished = await asyncio.to_thread(work, prepared, membership, self.settings.policy, trainer, client_state)
            return preview(membership, prepared, finished)
        finally:
            if in_flight is None:
                await self._abort(task, "encoding", "dry_run", "")

    async def _check_in(self) -> CheckInResponse:
        message = CheckIn(pending=tuple(self.store.pending()[:64]), capabilities=self._capabilities)
        try:
            value = await self._requests().json("POST", "/v1/device/check-in", message.model_dump(mode="json"))
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

    async def _perform(self, in_flight: InFlight, membership: Membership, *, resumed: bool) -> bool:
        """Bring a task in flight to its end. Returns whether the coordinator accepted the update."""
        task = Task.model_validate(parse_json(in_flight.message.encode()))
        phase = ["checking"]
        try:
            check_assignment(task, membership, self.settings.policy)
            if in_flight.state == "leased":
                update = await self._produce(task, membership, phase)
            else:
                update = self.store.update_path(task.id).read_bytes()
            phase[0] = "uploading"
            await self._upload(task, update, resume=resumed)
        except RemoteError as error:
            if is_transient(error):
                raise
            await self._give_up(task, phase[0], error, tell=error.reason not in _OVER and phase[0] != "uploading")
            return False
        except Stopped:
            await self._give_up(task, phase[0], Stopped(), tell=True)
            raise
        except StorageError:
            raise
        except CoterieError as error:
            await self._give_up(task, phase[0], error, tell=True)
            self._count_failure(error)
            return False
        except (
            Exception
        ) as error:  # a trainer of the owner's may raise anything, and one bad task must not end the device
            wrapped = InputError(f"The trainer failed: {type(error).__name__}: {error}", code="trainer_failed")
            await self._give_up(task, phase[0], wrapped, tell=True)
            self._count_failure(wrapped, cause=error)
            return False
        self._failures_in_a_row = 0
        return True

    async def _produce(self, task: Task, membership: Membership, phase: list[str]) -> bytes:
        def at(name: str) -> None:
            phase[0] = name

        prepared = await prepare(task, membership, self.settings.policy, self._blobs, at=at)
        self._blobs.prune(keep=frozenset((task.model.sha256, task.plan.id)))
        self._faults.reach("downloaded")
        at("training" if task.kind == "train" else "evaluating")
        closed = Flag()

        def on_step(steps: int) -> None:
            self._faults.reach("training")
            if self._stop.is_set() or closed.is_set():
                raise Stopped()

        heart = asyncio.create_task(self._beat(task, phase[0], closed))
        try:
            client_state = self.store.client_state(task.experiment)
            trainer = self._chosen_trainer()
            finished = await asyncio.to_thread(
                work, prepared, membership, self.settings.policy, trainer, client_state, on_step=on_step
            )
        except Stopped:
            if self._stop.is_set():
                raise
            raise RemoteError("The coordinator closed the task while it was trained.", code="task_finished") from None
        finally:
            heart.cancel()
        at("encoding")
        self._emit(
            "trained" if task.kind == "train" else "evaluated",
            task=task.id,
            steps=finished.steps,
            weight=finished.weight,
            seconds=round(finished.seconds, 3),
            **({"loss": finished.metrics["loss"]} if "loss" in finished.metrics else {}),
        )
        self._faults.reach("trained")
        self._keep(task, finished)
        return finished.update

    def _keep(self, task: Task, finished: Finished) -> None:
        self.store.write_update(task.id, finished.update, finished.client_state)
        self._faults.reach("written")
        self.store.stored(
            task.id,
            sha256=sha256_hex(finished.update),
            size=len(finished.update),
            weight=finished.weight,
            steps=finished.steps,
        )
        self._faults.reach("stored")

    async def _upload(self, task: Task, update: bytes, *, resume: bool) -> None:
        begun = time.monotonic()
        receipt = await upload(
            self._requests(), task.id, update, resume=resume, piece=self.settings.piece, reached=self._faults.reach
        )
        self._faults.reach("uploaded")
        self.store.acknowledged(task.id, kind=task.kind)
        if task.kind == "train":
            self.summary.trained += 1
        else:
            self.summary.evaluated += 1
        self._emit(
            "uploaded", task=task.id, bytes=len(update), seconds=round(time.monotonic() - begun, 3), state=receipt.state
        )
        self._faults.reach("pending")

    async def _beat(self, task: Task, phase: str, closed: Flag) -> None:
        """Tell the coordinator during long work that it goes on; learn that the task is over."""
        message = Progress.model_validate({"phase": phase}).model_dump(mode="json")
        while True:
            await asyncio.sleep(max(task.lease_ms / 1000 / HEARTBEATS_PER_LEASE, 0.5))
            try:
                await self._requests().json("POST", f"/v1/device/tasks/{task.id}/progress", message)
            except RemoteError as error:
                if error.reason in _OVER:
                    closed.set()
                    return

    async def _give_up(self, task: Task, phase: str, error: CoterieError, *, tell: bool) -> None:
        """Record that nothing comes of a task and, where it may not know yet, tell the coordinator, so that somebody
        else gets it.
        """
        self.store.fail(task.id, f"{error.reason}: {error.message}")
        self.summary.failed += 1
        self._emit("refused", task=task.id, code=error.reason, message=error.message, hint=error.hint)
        if not tell:
            return
        # Messages about data quote cells, so only those about plans and policy leave the device.
        detail = error.message[:2000] if isinstance(error, PlanRefused | PolicyRefused) else ""
        await self._abort(task, phase, error.reason, detail)

    async def _abort(self, task: Task, phase: str, code: str, detail: str) -> None:
        message = Abort.model_validate({"phase": phase, "code": code, "detail": detail})
        try:
            await self._requests().json("POST", f"/v1/device/tasks/{task.id}/abort", message.model_dump(mode="json"))
        except RemoteError as failure:
            # The lease runs out by itself; the task is over here either way.
            self._emit("error", code=failure.reason, message=failure.message, hint=failure.hint)

    def _count_failure(self, error: CoterieError, cause: Exception | None = None) -> None:
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= MOST_FAILURES:
            raise error from cause

    def _chosen_trainer(self) -> Trainer:
        if self._trainer is None:
            # Loading ONNX Runtime takes time that a check-in need not wait for.
            from coterie.client_sdk.device.trainers.plan import PlanTrainer

            self._trainer = PlanTrainer()
        return self._trainer

    def _requests(self) -> SignedLink:
        if self._signed is None:
            raise ConfigurationError("The device has not joined yet.", hint="Call join first.")
        return self._signed

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


def _window(window: RetryWindow) -> Window:
    return Window(window.min_ms / 1000, window.max_ms / 1000)
