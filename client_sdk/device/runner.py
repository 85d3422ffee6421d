"""One task in flight brought to its end: produced, stored, uploaded; or given up, with the reason told."""

import asyncio
import time
from dataclasses import asdict, dataclass, field
from threading import Event as Flag
from typing import TYPE_CHECKING, Any, Final

from coterie.aggregation.analytics.rule import question_of
from coterie.aggregation.plan.manifest import Manifest
from coterie.client_sdk.device.blobs import BlobCache
from coterie.client_sdk.device.divergence import blameless
from coterie.client_sdk.device.faults import DeviceFaults
from coterie.client_sdk.device.lineage import check_lineage, same_chain
from coterie.client_sdk.device.membership import Membership
from coterie.client_sdk.device.outcome import TaskResult
from coterie.client_sdk.device.quiet import speakable
from coterie.client_sdk.device.secure import Emit, SecureCourier
from coterie.client_sdk.device.settings import AgentSettings, RunSummary
from coterie.client_sdk.device.signed import SignedLink
from coterie.client_sdk.device.spending import FILE as LEDGER
from coterie.client_sdk.device.spending import PrivacyLedger, Release
from coterie.client_sdk.device.store import DeviceStore, InFlight
from coterie.client_sdk.device.trainers.base import Stopped, Trainer
from coterie.client_sdk.device.upload import upload
from coterie.client_sdk.device.work import check_assignment, prepare, work
from coterie.client_sdk.http import is_transient, parsed
from coterie.errors import (
    CoterieError,
    DataError,
    InputError,
    PlanRefused,
    PolicyRefused,
    RemoteError,
    SecureAggregationRefused,
    StorageError,
)
from coterie.protocol.arrays import FloatArrays
from coterie.protocol.canonical import parse_json, sha256_hex
from coterie.protocol.device import Abort, Progress, Task

if TYPE_CHECKING:
    from coterie.client_sdk.device.parallel import DeviceParallel
    from coterie.client_sdk.device.seats import Seats
    from coterie.compute.onnx.providers import ProviderClass

# A device that fails task after task wastes leases that others could use.
MOST_FAILURES: Final = 3
HEARTBEATS_PER_LEASE: Final = 3
# Answers after which nothing more can come of a task.
_OVER: Final = frozenset(
    ("task_unknown", "task_finished", "lease_expired", "round_closed", "stale_update", "attempt_over")
)
_SENDING: Final = "uploading"


@dataclass(kw_only=True)
class TaskRunner:
    """Performs the tasks of one device.

    stop: set when the work in progress shall end.
    failures: tasks that failed on this device, one after another.
    """

    settings: AgentSettings
    membership: Membership
    store: DeviceStore
    blobs: BlobCache
    requests: SignedLink
    faults: DeviceFaults
    summary: RunSummary
    emit: Emit
    stop: Flag
    trainer: Trainer | None
    providers: "Seats | None" = field(default=None, init=False)
    parallel: "DeviceParallel | None" = field(default=None, init=False)
    courier: SecureCourier = field(init=False)
    ledger: PrivacyLedger = field(init=False)
    failures: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.ledger = PrivacyLedger(self.settings.policy.ledger or self.store.folder / LEDGER)
        self.courier = SecureCourier(
            device=self.membership.device_id,
            floor=self.settings.policy.cohort_floor,
            store=self.store,
            requests=self.requests,
            faults=self.faults,
            emit=self.emit,
            stop=self.stop,
            piece=self.settings.piece,
            endorsed=self.settings.policy.endorsed,
            endorsement=self.membership.endorsement,
            rng=self.settings.rng,
            before_masked=self._mark_sent,
        )

    async def perform(self, in_flight: InFlight, *, resumed: bool) -> bool:
        """Bring a task in flight to its end. Returns whether the coordinator accepted the update."""
        task = Task.model_validate(parse_json(in_flight.message.encode()))
        phase = ["checking"]
        try:
            check_assignment(task, self.membership, self.settings.policy)
            update: bytes | None = None
            if in_flight.state == "leased":
                finished = await self._compute_update(task, in_flight.release, phase)
                self._store_result(task, finished)
                update = finished.update
            phase[0] = _SENDING
            if task.secure is not None:
                await self._aggregate_securely(task)
            else:
                update = self._stored_update(in_flight) if update is None else update
                await self._mark_sent(task)
                await self._upload(task, update, resume=resumed)
        except RemoteError as error:
            if is_transient(error):
                raise
            heard = error.reason in _OVER or phase[0] == _SENDING
            await self._give_up(task, phase[0], error, tell=not heard and speakable(task, phase[0], error))
            return False
        except Stopped:
            # An attempt that others wait in is taken up again at the next start; training is not.
            if phase[0] != _SENDING:
                await self._give_up(task, phase[0], Stopped(), tell=True)
            raise
        except StorageError:
            raise
        except CoterieError as error:
            # What rows have to do with says something of them: to others this device is merely gone.
            await self._give_up(task, phase[0], error, tell=speakable(task, phase[0], error))
            # What the owner's policy refuses, or what diverges, is no failure of the device: the next task may do.
            if not blameless(error):
                self._count_failure(error)
            return False
        except (
            Exception
        ) as error:  # a trainer of the owner's may raise anything, and one bad task must not end the device
            wrapped = InputError(f"The trainer failed: {type(error).__name__}: {error}", code="trainer_failed")
            await self._give_up(task, phase[0], wrapped, tell=speakable(task, phase[0], wrapped))
            self._count_failure(wrapped, cause=error)
            return False
        self.failures = 0
        return True

    async def _compute_update(self, task: Task, key: str, phase: list[str]) -> TaskResult:
        def enter_phase(name: str) -> None:
            phase[0] = name

        await self.check_lineage(task)
        self.faults.reach("remembered")
        policy = self.settings.policy
        prepared = await prepare(
            task, self.membership, policy, self.blobs, self.ledger, key=key, at=enter_phase, kinds=self.kinds
        )
        trainer = self.chosen_trainer()
        enter_phase("checking")
        await asyncio.to_thread(trainer.check, prepared.plan, task.kind, policy.threads)
        self._announce_plan(task, prepared.plan.manifest)
        self.blobs.prune(keep=frozenset((task.model.sha256, task.plan.id)))
        self.faults.reach("downloaded")
        enter_phase("training" if task.kind == "train" else "evaluating")
        closed = Flag()

        def on_step(steps: int) -> None:
            self.faults.reach("training")
            if self.stop.is_set() or closed.is_set():
                raise Stopped()

        heart = asyncio.create_task(self._heartbeat(task, phase[0], closed))
        try:
            client_state = self.client_state(task)
            finished = await asyncio.to_thread(
                work, prepared, self.membership, self.settings.policy, trainer, client_state, on_step=on_step
            )
        except Stopped:
            if self.stop.is_set():
                raise
            raise RemoteError("The coordinator closed the task while it was trained.", code="task_finished") from None
        except CoterieError as error:
            if prepared.plan.manifest.schema.digest == self.membership.schema.digest:
                raise
            # Which rows there are to work on depends on the reading, and so may what has failed for want of them.
            raise DataError(error.message, hint=error.hint, code=error.reason) from error
        finally:
            heart.cancel()
            self.hear_of_providers()
        enter_phase("encoding")
        self.emit(
            "trained" if task.kind == "train" else "evaluated",
            task=task.id,
            steps=finished.steps,
            weight=finished.weight,
            seconds=round(finished.seconds, 3),
            **({"loss": finished.metrics["loss"]} if "loss" in finished.metrics else {}),
        )
        if (why := finished.unusable) is not None:
            self.emit("unusable", task=task.id, code=why.reason, message=why.message, hint=why.hint)
        self.faults.reach("trained")
        if prepared.release is not None:
            await self._charge(prepared.release)
        return finished

    def _announce_plan(self, task: Task, manifest: Manifest) -> None:
        """Remember and tell the owner what a task is for, and who signed it."""
        asks = question_of(manifest)
        self.store.describe(task.id, name=manifest.name, asks=asks)
        self.emit(
            "plan",
            task=task.id,
            experiment=task.experiment,
            name=manifest.name,
            asks=asks,
            method=manifest.algorithm.name,
            signer=task.plan.signer,
            plan=task.plan.id,
        )

    async def _charge(self, release: Release) -> None:
        """Write down what a finished task releases, and tell the owner what that comes to."""
        policy = self.settings.policy
        await asyncio.to_thread(self.ledger.charge, release, policy)
        self.faults.reach("charged")
        if policy.max_epsilon is not None:
            total = await asyncio.to_thread(self.ledger.total, policy.max_delta)
            self.emit("released", task=release.task, **asdict(total), most=policy.max_epsilon)

    async def check_lineage(self, task: Task) -> None:
        """Hold the task to the versions that this device remembers, and remember what it shows."""

        async def ask(target: str) -> Any:
            return parsed(await self.requests.request("GET", target))

        await check_lineage(task, self.store.lineages, ask)

    def client_state(self, task: Task) -> FloatArrays:
        """The experiment's committed client state, if it was made in the task's chain of versions; else none."""
        made = self.store.lineages.made_in(task.experiment)
        if made is None or same_chain(task, made):
            return self.store.client_state(task.experiment)
        self.emit("state_dropped", task=task.id, experiment=task.experiment, made_in=made.round)
        return {}

    def _store_result(self, task: Task, finished: TaskResult) -> None:
        if finished.vector is not None:
            self.courier.begin(
                task, finished.vector, finished.client_state, weight=finished.weight, steps=finished.steps
            )
            return
        self.store.write_update(task.id, finished.update, finished.client_state)
        self.faults.reach("written")
        self.store.stored(
            task.id,
            sha256=sha256_hex(finished.update),
            size=len(finished.update),
            weight=finished.weight,
            steps=finished.steps,
        )
        self.faults.reach("stored")

    async def _mark_sent(self, task: Task) -> None:
        """Before the first byte of an update leaves: mark what it releases as sent, in the record. Raises PolicyRefused
        (``privacy_unrecorded``) for a finished task whose cost is no longer on record.
        """
        in_flight = self.store.in_flight()
        if task.privacy is not None and in_flight is not None:
            await asyncio.to_thread(self.ledger.send, in_flight.release, in_flight.sha256)

    def _stored_update(self, in_flight: InFlight) -> bytes:
        """The bytes that were stored for the task; no others are ever sent for it."""
        path = self.store.update_path(in_flight.task)
        update = path.read_bytes() if path.exists() else b""
        if sha256_hex(update) != in_flight.sha256:
            raise PolicyRefused(
                "The finished update is damaged, so it is not sent.",
                hint=f"Check the disk below {path.parent}; the device goes on with its next task.",
                code="update_damaged",
            )
        return update

    async def _upload(self, task: Task, update: bytes, *, resume: bool) -> None:
        begun = time.monotonic()
        receipt = await upload(
            self.requests, task.id, update, resume=resume, piece=self.settings.piece, reached=self.faults.reach
        )
        self.faults.reach("uploaded")
        self.emit(
            "uploaded", task=task.id, bytes=len(update), seconds=round(time.monotonic() - begun, 3), state=receipt.state
        )
        self._record_acknowledged(task, "")

    async def _aggregate_securely(self, task: Task) -> None:
        ended = await self.courier.carry(task)
        self.faults.reach("ended")
        if not ended.masked:
            raise RemoteError(
                f"The attempt of secure aggregation ended before this device's vector was included: {ended.cause}.",
                hint="Nothing of the update has left; the device goes on with its next task.",
                code="attempt_over",
            )
        self.emit("attempt", task=task.id, state=ended.state, cause=ended.cause)
        self._record_acknowledged(task, ended.cause or ended.state)

    def _record_acknowledged(self, task: Task, outcome: str) -> None:
        self.store.acknowledged(task.id, kind=task.kind, outcome=outcome)
        if task.kind == "train":
            self.summary.trained += 1
        else:
            self.summary.evaluated += 1
        self.faults.reach("pending")

    async def _heartbeat(self, task: Task, phase: str, closed: Flag) -> None:
        """Tell the coordinator during long work that it goes on; learn that the task is over."""
        message = Progress.model_validate({"phase": phase}).model_dump(mode="json")
        while True:
            await asyncio.sleep(max(task.lease_ms / 1000 / HEARTBEATS_PER_LEASE, 0.5))
            try:
                await self.requests.json("POST", f"/v1/device/tasks/{task.id}/progress", message)
            except RemoteError as error:
                if error.reason in _OVER:
                    closed.set()
                    return

    async def _give_up(self, task: Task, phase: str, error: CoterieError, *, tell: bool) -> None:
        """Record that nothing comes of a task and, where it may not know yet, tell the coordinator, so that somebody
        else gets it.
        """
        if self.courier.has_masked(task.id):
            # The coordinator may hold the masked vector, so it alone knows whether the round counts this task: the next
            # check-in settles it. The device itself says nothing more in the attempt.
            self.store.acknowledged(task.id, kind=task.kind, outcome=error.reason)
            tell = False
        else:
            unsent = self.store.in_flight()
            self.store.fail(task.id, f"{error.reason}: {error.message}")
            if task.privacy is not None and unsent is not None:
                self.ledger.refund(unsent.release)
        self.summary.failed += 1
        self.emit("refused", task=task.id, code=error.reason, message=error.message, hint=error.hint)
        if not tell:
            return
        # Messages about data quote cells, so only those about plans, policy and the protocol leave the device.
        of_rules = isinstance(error, PlanRefused | PolicyRefused | SecureAggregationRefused)
        detail = error.message[:2000] if of_rules else ""
        await self.abort(task, phase, error.reason, detail)

    async def abort(self, task: Task, phase: str, code: str, detail: str) -> None:
        message = Abort.model_validate({"phase": phase, "code": code, "detail": detail})
        try:
            await self.requests.json("POST", f"/v1/device/tasks/{task.id}/abort", message.model_dump(mode="json"))
        except RemoteError as failure:
            # The lease runs out by itself; the task is over here either way.
            self.emit("error", code=failure.reason, message=failure.message, hint=failure.hint)

    def _count_failure(self, error: CoterieError, cause: Exception | None = None) -> None:
        self.failures += 1
        if self.failures >= MOST_FAILURES:
            raise error from cause

    def chosen_trainer(self) -> Trainer:
        if self.trainer is None:
            # Loading ONNX Runtime takes time that a check-in need not wait for.
            from coterie.client_sdk.device.trainers.made import plan_trainer

            self.trainer, self.providers, self.parallel = plan_trainer(self.settings.policy, self.store)
        return self.trainer

    async def kinds(self) -> "frozenset[ProviderClass]":
        """The classes of providers whose variants of a plan this device may run."""
        self.chosen_trainer()
        if self.providers is None:
            return frozenset()
        # Finding providers may load their libraries, which takes longer than an event loop should wait.
        return await asyncio.to_thread(self.providers.kinds)

    def hear_of_providers(self) -> None:
        """Remember and tell what became of execution providers, and of the processes that share a training, while a
        task was worked on, which is over.
        """
        for shared in () if self.parallel is None else self.parallel.news():
            by = "layers" if shared.layers else ""
            facts = {"by": by, "reason": shared.reason, "seconds": shared.seconds}
            told = {name: fact for name, fact in facts.items() if fact not in ("", None)}
            self.emit("parallel", state=shared.state, processes=shared.processes, **told)
        if self.providers is None:
            return
        for news in self.providers.news():
            if news.verdict is not None:
                self.store.verdicts.record(news.verdict)
            facts = {"reason": news.reason, "seconds": news.seconds, "steps": news.steps}
            told = {name: fact for name, fact in facts.items() if fact not in ("", None)}
            self.emit("provider", provider=news.provider, state=news.state, **told)
        self.providers.rest()

    def close(self) -> None:
        """End the processes that shared the last training."""
        if self.parallel is not None:
            self.parallel.close()
