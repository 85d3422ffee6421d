"""A finished task under secure aggregation: from the vector in clear to the end of the attempt.

    keys ->  roster  -> shares ->  shares  -> masked vector ->  survivors  -> [agreement ->  agreements ->] reveal
    -> outcome

What the device sends stands left of an arrow, what it waits for after it: in the answer to what it sends, which the
coordinator holds back for a while, and then in long polls. The bracket is for the mode ``consistent``. What each
message means, and every check of it, is in `coterie.privacy.secagg.client`; here it is made durable and carried.

Guarantees: the state of the machine and the message that it asks to send are in the store before that message leaves
(`coterie.client_sdk.device.attempts`); so a device killed at any point sends the same bytes again, and one whose state
is lost or damaged says nothing more. When the attempt is over, its secrets are erased.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Event as Flag
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from coterie.client_sdk.device.attempts import AFTER_MASKING, AttemptRecord, MessageKind
from coterie.client_sdk.device.backoff import Backoff, after_failure
from coterie.client_sdk.device.faults import DeviceFaults
from coterie.client_sdk.device.signed import SignedLink
from coterie.client_sdk.device.store import DeviceStore
from coterie.client_sdk.device.trainers.base import Stopped
from coterie.client_sdk.device.upload import PIECE, upload
from coterie.client_sdk.http import is_transient, parsed
from coterie.errors import InternalError, PolicyRefused, RemoteError, SecureAggregationRefused, StorageError
from coterie.privacy.secagg import client
from coterie.privacy.secagg.client_state import ClientState, SecAggClientPhase
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.endorsed import NO_ENDORSEMENT, EndorsementRule
from coterie.privacy.secagg.masked_file import MaskedHeader, encode_masked
from coterie.privacy.secagg.ring import WORD, RingVector
from coterie.privacy.secagg.roster import model_digest
from coterie.privacy.secagg.survivors import from_bits
from coterie.protocol.arrays import FloatArrays
from coterie.protocol.canonical import canonical_json, parse_json, sha256_hex
from coterie.protocol.conversion import to_json
from coterie.protocol.device import Task, UploadReceipt
from coterie.protocol.endorsements import Endorsement
from coterie.protocol.secagg import (
    Agreements,
    MessageReceipt,
    Outcome,
    Roster,
    SecureTerms,
    SharesFor,
    Survivors,
    ToClient,
)
from coterie.protocol.wire import read_message

Result = TypeVar("Result")

WAIT_MS: Final = 20_000
"""How long the answer to a message, or one question of the long poll, may stay open."""
AWAITED: Final[Mapping[str, type[ToClient]]] = {
    "roster": Roster,
    "shares": SharesFor,
    "survivors": Survivors,
    "agreements": Agreements,
    "outcome": Outcome,
}
"""What the machine waits for -> the message that the coordinator's path of that name answers."""
ANSWERS: Final[Mapping[str, MessageKind]] = {"Shares": "shares", "Agreement": "agreement", "Reveal": "reveal"}
OVER: Final = "attempt_over"
_TOO_LATE: Final = "phase_over"
_STOP_LOOKS_S: Final = 0.2
_RETRIES: Final = Backoff(base_s=0.1, cap_s=5.0)
# A coordinator ends each phase in time. One that is silent for so many phases has forgotten this attempt; the roster,
# though, waits for the slowest client to finish its training.
_SILENT_PHASES: Final = 20
_SILENT_S: Final = 60.0
_ROSTER_S: Final = 24 * 3600.0


class Emit(Protocol):
    """Tells the owner of the device what happens."""

    def __call__(self, event: str, /, **fields: Any) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How an attempt ended.

    masked: whether the coordinator may hold the masked vector, so that a check-in settles what becomes of the task.
    state: ``summed``, ``failed`` or ``over``.
    cause: why there is no sum, if somebody said so.
    """

    masked: bool
    state: str
    cause: str = ""


async def _no_answer(task: Task) -> None: ...


@dataclass(kw_only=True)
class SecureCourier:
    """Carries the attempts of one device.

    floor: the fewest clients that it agrees to be one of.
    endorsed: how many of them must be endorsed, and by whom.
    endorsement: of this device.
    before_masked: awaited before a masked vector is sent.
    """

    device: str
    floor: int
    store: DeviceStore
    requests: SignedLink
    faults: DeviceFaults
    emit: Emit
    stop: Flag
    piece: int = PIECE
    endorsed: EndorsementRule = NO_ENDORSEMENT
    endorsement: Endorsement | None = None
    rng: random.Random = field(default_factory=random.SystemRandom)
    before_masked: Callable[[Task], Awaitable[None]] = _no_answer

    def begin(self, task: Task, vector: RingVector, client_state: FloatArrays, *, weight: int, steps: int) -> None:
        """Make the task's vector and the first state of its attempt durable; nothing is sent yet."""
        terms = _terms(task)
        data = vector.astype(WORD, copy=False).tobytes()
        self.store.write_vector(task.id, data, dict(client_state))
        self.faults.reach("written")
        state, keys = client.begin(
            terms,
            device=self.device,
            plan=task.plan.id,
            model=model_digest(task),
            identity=self.store.key,
            floor=self.floor,
            required=self.endorsed,
            endorsement=self.endorsement,
        )
        record = AttemptRecord(
            attempt=terms.attempt,
            mode=terms.mode,
            message="keys",
            body=canonical_json(keys.model_dump(mode="json")).decode(),
            state=to_json(state),
            vector=sha256_hex(data),
        )
        self.store.begin_attempt(task.id, record, weight=weight, steps=steps)
        self.faults.reach("keys_ready")

    def has_masked(self, task: str) -> bool:
        """Whether the masked vector of a task may have left."""
        return self.store.attempts.message(task) in AFTER_MASKING

    async def carry(self, task: Task) -> Ended:
        """Bring a task's attempt to its end, from wherever it is.

        Raises SecureAggregationRefused and PolicyRefused (``attempt_lost``): this device is out of it; RemoteError;
        Stopped, which leaves the attempt where it is. The caller then forgets it, or comes back.
        """
        record = self.store.attempts.load(task.id)
        state = self._under_policy(_state(task, record))
        again = True
        try:
            while True:
                answered = await self._send(task, record, again=again)
                again = False
                message = None if answered is None else _told(state, answered)
                message = message or await self._awaited(task, state)
                self.faults.reach("answering")
                if isinstance(message, Outcome):
                    return Ended(masked=record.message in AFTER_MASKING, state=message.state, cause=message.cause or "")
                state, record = await self._answer(task, state, record, message)
        except RemoteError as error:
            if error.reason != OVER:
                raise
            cause = str(error.details.get("cause") or "")
            return Ended(masked=record.message in AFTER_MASKING, state="over", cause=cause)

    def _under_policy(self, state: ClientState) -> ClientState:
        """The state, checked against who must be endorsed by the current policy: the owner may have changed it since
        the attempt began. Raises SecureAggregationRefused (``secagg_identities``) once another one took a roster.
        """
        if not self.endorsed.least or self.endorsed == state.required:
            return state
        if state.phase is SecAggClientPhase.ROSTER:
            return replace(state, required=self.endorsed)
        raise SecureAggregationRefused(
            "This attempt's clients were counted by another policy than this device has now (min_endorsed, endorsers).",
            hint="This client sends nothing more in this attempt; the next one is checked against the current policy.",
            code="secagg_identities",
        )

    async def _answer(
        self, task: Task, state: ClientState, record: AttemptRecord, message: ToClient
    ) -> tuple[ClientState, AttemptRecord]:
        """The machine's next state, and what it has to send, both durable."""
        state, reply = await asyncio.to_thread(client.step, state, message, identity=self.store.key)
        record = _with_counts(record, state, message)
        if state.awaits == "vector":
            vector = self._vector(task, record)
            state, packed = await asyncio.to_thread(client.mask, state, vector)
            masked = encode_masked(_header(task, state), packed)
            self.store.write_masked(task.id, masked)
            self.faults.reach("masked_written")
            record = replace(record, message="masked", body="", state=to_json(state), vector="")
            self.store.masked(task.id, record, sha256=sha256_hex(masked), size=len(masked))
        elif reply is None:
            raise InternalError(f"The machine has nothing to send and waits for {state.awaits}.")
        else:
            body = canonical_json(reply.model_dump(mode="json")).decode()
            record = replace(record, message=ANSWERS[type(reply).__name__], body=body, state=to_json(state))
            self.store.attempts.advance(task.id, record)
        self.faults.reach(f"{record.message}_ready")
        return state, record

    async def _send(self, task: Task, record: AttemptRecord, *, again: bool) -> dict[str, Any] | None:
        """Send the message that the store holds. Sending it again is harmless: the coordinator knows it.

        again: whether this may be the second time, so that a part of it is there already.
        Returns the message that comes next, where the answer brought it.
        """
        answered = None
        try:
            if record.message == "masked":
                answered = await self._upload(task, resume=again)
            else:
                target = f"/v1/device/tasks/{task.id}/secure/{record.message}?wait_ms={WAIT_MS}"
                body = parse_json(record.body.encode())
                receipt = await self._with_retries(task, lambda: self.requests.json("POST", target, body))
                answered = read_message(MessageReceipt, receipt).next
        except RemoteError as error:
            # The phase ended, with this message in it or without: what the coordinator says next will tell.
            if error.reason != _TOO_LATE:
                raise
        self.faults.reach(f"{record.message}_sent")
        self.emit("sent", task=task.id, message=record.message, clients=record.clients, survivors=record.survivors)
        return answered

    async def _upload(self, task: Task, *, resume: bool) -> dict[str, Any] | None:
        begun = time.monotonic()
        masked = self._masked(task)
        await self.before_masked(task)
        tries = count(int(resume))

        def sent() -> Coroutine[Any, Any, UploadReceipt]:
            return upload(
                self.requests,
                task.id,
                masked,
                resume=next(tries) > 0,
                piece=self.piece,
                wait_ms=WAIT_MS,
                reached=self.faults.reach,
            )

        receipt = await self._with_retries(task, sent)
        self.faults.reach("uploaded")
        seconds = round(time.monotonic() - begun, 3)
        self.emit("uploaded", task=task.id, bytes=len(masked), seconds=seconds, state=receipt.state)
        return receipt.next

    async def _awaited(self, task: Task, state: ClientState) -> ToClient:
        """What the coordinator says next, however long the others take."""
        name = state.awaits
        target = f"/v1/device/tasks/{task.id}/secure/{name}?wait_ms={WAIT_MS}"
        silent_s = _ROSTER_S if name == "roster" else _SILENT_S + _SILENT_PHASES * state.terms.phase_ms / 1000
        until = time.monotonic() + silent_s
        while time.monotonic() < until:
            response = await self._with_retries(task, lambda: self.requests.request("GET", target))
            if response.status_code == 204:
                await self._unless_stopped(asyncio.sleep(float(response.headers.get("Retry-After", "0"))))
                continue
            if (message := _told(state, parsed(response))) is not None:
                return message
        raise RemoteError(
            f"The coordinator has not sent the {name} of attempt {state.terms.attempt} for {silent_s:.0f} s.",
            hint="The device goes on with its next task.",
            code="attempt_silent",
        )

    async def _with_retries(self, task: Task, request: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """A request, tried again while it fails for reasons that pass: a coordinator that restarts must not cost the
        attempt a client. Raises the failure when it lasts longer than the attempt could.
        """
        until = time.monotonic() + _SILENT_S + 2 * _terms(task).phase_ms / 1000
        failures = 0
        while True:
            try:
                return await self._unless_stopped(request())
            except RemoteError as error:
                if not is_transient(error) or time.monotonic() > until:
                    raise
                failures += 1
                retry_after = float(error.details.get("retry_after_s") or 0.0)
                pause = after_failure(failures, _RETRIES, self.rng, retry_after_s=retry_after)
                self.emit("error", code=error.reason, message=error.message, hint=error.hint)
                await self._unless_stopped(asyncio.sleep(pause))

    async def _unless_stopped(self, work: Awaitable[Result]) -> Result:
        """The work's result. Raises Stopped soon after the device shall stop."""
        running = asyncio.ensure_future(work)
        try:
            while not self.stop.is_set():
                if (await asyncio.wait((running,), timeout=_STOP_LOOKS_S))[0]:
                    return running.result()
            raise Stopped()
        finally:
            if not running.done():
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    def _vector(self, task: Task, record: AttemptRecord) -> RingVector:
        """The vector in clear, if it is the one that the attempt began with."""
        path = self.store.vector_path(task.id)
        data = path.read_bytes() if path.exists() else b""
        if sha256_hex(data) != record.vector:
            raise _damaged("vector", str(path))
        return np.frombuffer(data, WORD).astype(np.uint32)

    def _masked(self, task: Task) -> bytes:
        """The masked vector's file, if it is the one that the store knows."""
        path = self.store.update_path(task.id)
        data = path.read_bytes() if path.exists() else b""
        in_flight = self.store.in_flight()
        if in_flight is None or in_flight.task != task.id or sha256_hex(data) != in_flight.sha256:
            raise _damaged("masked vector", str(path))
        return data


def _told(state: ClientState, written: dict[str, Any]) -> ToClient | None:
    """A message for the client; None for the outcome of an attempt that is still open."""
    message = read_message(AWAITED[state.awaits], written)
    return None if isinstance(message, Outcome) and message.state == "open" else message


def _terms(task: Task) -> SecureTerms:
    if task.secure is None:
        raise InternalError(f"Task {task.id} is without secure aggregation.")
    return task.secure


def _state(task: Task, record: AttemptRecord) -> ClientState:
    try:
        return ClientState.from_json(record.state)
    except StorageError as error:
        raise PolicyRefused(
            f"The attempt of task {task.id} can no longer be read, so this device sends nothing more in it.",
            hint="The device goes on with its next task.",
            code="attempt_lost",
        ) from error


def _with_counts(record: AttemptRecord, state: ClientState, message: ToClient) -> AttemptRecord:
    """The record with what the message says of how many take part."""
    match message:
        case Roster():
            return replace(record, clients=message.clients)
        case Survivors():
            return replace(record, survivors=len(from_bits(message.alive, state.clients)))
        case _:
            return record


def _header(task: Task, state: ClientState) -> MaskedHeader:
    return MaskedHeader(
        attempt=state.terms.attempt,
        task=task.id,
        plan=task.plan.id,
        base=task.model.sha256,
        spec=vector_spec(state.terms.sections).digest,
    )


def _damaged(what: str, path: str) -> PolicyRefused:
    return PolicyRefused(
        f"The {what} is damaged, so this device sends nothing more in its attempt.",
        hint=f"Check the disk: {path}. The device goes on with its next task.",
        code="attempt_lost",
    )
