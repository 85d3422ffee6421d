"""A coordinator of one attempt without HTTP: the server's machine behind the routes that a device calls, and devices
with a store each.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Flag
from typing import Any, Final, cast

import httpx
import numpy as np
from numpy.typing import NDArray

from coterie.client_sdk.device.faults import DeviceFaults
from coterie.client_sdk.device.secure import Ended, SecureCourier
from coterie.client_sdk.device.signed import SignedLink
from coterie.client_sdk.device.store import DeviceStore
from coterie.errors import RemoteError
from coterie.privacy.secagg import server
from coterie.privacy.secagg.encoding import vector_spec
from coterie.privacy.secagg.masked_file import MaskedHeader, read_masked
from coterie.privacy.secagg.masks import add_masks
from coterie.privacy.secagg.ring import reduced
from coterie.privacy.secagg.roster import model_digest
from coterie.protocol import ids
from coterie.protocol.device import PlanRef, Task
from coterie.protocol.secagg import AdvertiseKeys, Agreement, Reveal, SecureTerms, Shares
from coterie.protocol.secure_sections import COUNTED, COUNTS, SecureSection
from coterie.protocol.wire import BlobRef

SECTIONS = (
    SecureSection(name=COUNTS, encoding="exact", values=len(COUNTED), bits=12, top=8),
    SecureSection(name="delta", encoding="grid", values=40, bits=16, top=255, norm=1.0),
)
PLAN, MODEL, EXPERIMENT = "a" * 64, "b" * 64, ids.new_id(ids.EXPERIMENT)


class Killed(Exception):
    """Where the process of a device would have ended."""


def terms(clients: int, mode: str = "semi_honest", **changes: Any) -> SecureTerms:
    """Terms for a complete graph of so many clients."""
    chosen: dict[str, Any] = {
        "attempt": ids.new_id(ids.ATTEMPT),
        "mode": mode,
        "corrupt": 0.1,
        "dropout": 0.4,
        "min_clients": 3,
        "max_clients": clients,
        "weight_cap": 8,
        "sections": SECTIONS,
        "noise": None,
        "phase_ms": 200,
    }
    return SecureTerms(**{**chosen, **changes})


def task(secure: SecureTerms, device: str) -> Task:
    """A task of which only the device's part of an attempt looks at anything."""
    return Task(
        id=ids.new_id(ids.TASK),
        device=device,
        experiment=EXPERIMENT,
        round=1,
        kind="train",
        plan=PlanRef(id=PLAN, signature="c" * 86 + "==", signer="d" * 64),
        model=BlobRef(sha256=MODEL, size=1),
        frozen=None,
        hyper={},
        codecs=("float32",),
        lease_ms=1000,
        weight_cap=8,
        upload_limit=1 << 20,
        seed=0,
        edge=None,
        secure=secure,
    )


@dataclass
class Relay:
    """Answers the routes of one attempt. bodies: (device, message) -> every different body that came. rewrite: what a
    coordinator that lies makes of a message before it is told.
    """

    terms: SecureTerms
    clients: int
    rewrite: Callable[[str, str, dict[str, Any]], dict[str, Any]] = lambda device, name, message: message
    state: server.ServerState | None = None
    advertised: dict[str, server.Advertised] = field(default_factory=dict[str, server.Advertised])
    shares: dict[int, Shares] = field(default_factory=dict[int, Shares])
    agreements: dict[int, Agreement] = field(default_factory=dict[int, Agreement])
    masked: dict[str, bytes] = field(default_factory=dict[str, bytes])
    bodies: dict[tuple[str, str], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    tasks: dict[str, Task] = field(default_factory=dict[str, Task])
    identities: dict[str, str] = field(default_factory=dict[str, str])
    fail_next: list[int] = field(default_factory=list[int])
    waits: bool = True

    def post(self, device: str, name: str, body: bytes) -> None:
        """One of the device's messages."""
        self.bodies[device, name].add(body)
        value = json.loads(body)
        if name == "keys":
            identity = self.identities[device]
            event = server.Advertised(device, identity, AdvertiseKeys.model_validate(value))
            self.advertised[device] = event
            if self.state is None and len(self.advertised) == self.clients:
                model = model_digest(task(self.terms, device))
                self.state = server.begin(self.terms, self.advertised.values(), plan=PLAN, model=model)
            return
        place = self.place_of(device)
        if name == "shares":
            self.shares[place] = Shares.model_validate(value)
            self.step(server.Shared(place, self.shares[place]), "shares")
        elif name == "agreement":
            self.agreements[place] = Agreement.model_validate(value)
            self.step(server.Agreed(place, self.agreements[place]), "agreement")
        else:
            self.step(server.Revealed(place, Reveal.model_validate(value)), "reveal")

    def running(self) -> server.ServerState:
        """The state once there is a roster."""
        if self.state is None:
            raise RemoteError("There is no roster yet.", code="phase_early", http_status=409)
        return self.state

    def step(self, event: server.ServerEvent, phase: str) -> None:
        """One event, unless its phase is over."""
        state = self.running()
        if state.phase.value == phase:
            self.state = server.step(state, event)

    def arrive(self, device: str, masked: bytes) -> None:
        """A masked vector."""
        self.bodies[device, "masked"].add(masked)
        self.masked[device] = masked
        self.step(server.MaskedArrived(self.place_of(device)), "masked")

    def place_of(self, device: str) -> int:
        """The device's place in the roster."""
        return next(entry.position for entry in self.running().entries if entry.device == device)

    def deadline(self) -> None:
        """The end of the phase that goes on."""
        self.state = server.step(self.running(), server.PhaseDeadline())

    def tell(self, device: str, name: str) -> dict[str, Any] | None:
        """What the coordinator has to say, or None as long as it has not."""
        state = self.state
        if state is None:
            return None
        if state.phase is server.SecAggPhase.FAILED:
            cause = "" if state.cause is None else state.cause.value
            raise RemoteError("The attempt is over.", code="attempt_over", http_status=410, cause=cause)
        place = self.place_of(device)
        order = [phase.value for phase in server.SecAggPhase]
        after = {"roster": "shares", "shares": "masked", "survivors": "agreement", "agreements": "reveal"}
        if name == "outcome":
            outcome = server.outcome_for(state)
            return outcome.model_dump(mode="json") if outcome.state != "open" else None
        if order.index(state.phase.value) < order.index(after[name]):
            return None
        match name:
            case "roster":
                message = server.roster_for(state, place)
            case "shares":
                message = server.shares_for(state, place, self.shares)
            case "survivors":
                message = server.survivors_for(state)
            case _:
                message = server.agreements_for(state, place, self.agreements)
        return message.model_dump(mode="json")

    def total(self) -> NDArray[np.uint32]:
        """The unmasked sum."""
        state = self.running()
        spec = vector_spec(self.terms.sections)
        sum_ = np.zeros(spec.length, np.uint32)
        devices = [entry.device for entry in state.entries]
        for place in state.survivors:
            device = devices[place]
            header = MaskedHeader(
                attempt=self.terms.attempt, task=self.tasks[device].id, plan=PLAN, base=MODEL, spec=spec.digest
            )
            sum_ += read_masked(self.masked[device], header, spec)
        add_masks(sum_, [mask.opposite for mask in server.plan_masks(state)])
        return reduced(sum_, spec)


BEHIND: Final = {
    "keys": "roster",
    "shares": "shares",
    "masked": "survivors",
    "agreement": "agreements",
    "reveal": "outcome",
}
"""What a device says -> what comes next."""


@dataclass
class Wire:
    """One device's requests to the relay, as `SignedLink` has them."""

    relay: Relay
    device: str
    _parts: bytearray = field(default_factory=bytearray)

    async def json(self, method: str, target: str, message: object) -> Any:
        self._maybe_fail()
        name = target.rpartition("/")[2].partition("?")[0]
        self.relay.post(self.device, name, json.dumps(message, sort_keys=True).encode())
        return {"state": "accepted", "next": await self._behind(name)}

    async def request(
        self, method: str, target: str, *, body: bytes = b"", headers: dict[str, str] | None = None, accept: object = ()
    ) -> httpx.Response:
        self._maybe_fail()
        request = httpx.Request(method, "http://relay" + target)
        if method == "HEAD":
            return httpx.Response(200, headers={"Upload-Offset": "0"}, request=request)
        if method == "PATCH":
            headers = headers or {}
            if int(headers["Upload-Offset"]) == 0:
                self._parts.clear()
            self._parts += body
            if len(self._parts) < int(headers["Upload-Length"]):
                return httpx.Response(204, headers={"Upload-Offset": str(len(self._parts))}, request=request)
            self.relay.arrive(self.device, bytes(self._parts))
            receipt = {"state": "accepted", "sha256": "e" * 64, "next": await self._behind("masked")}
            return httpx.Response(200, json=receipt, request=request)
        said = await self._told(target.rpartition("/")[2].partition("?")[0])
        if said is not None:
            return httpx.Response(200, json=said, request=request)
        return httpx.Response(204, headers={"Retry-After": "0"}, request=request)

    async def _told(self, name: str) -> dict[str, Any] | None:
        for _ in range(20):
            said = self.relay.tell(self.device, name)
            if said is not None:
                return self.relay.rewrite(self.device, name, said)
            await asyncio.sleep(0.002)
        return None

    async def _behind(self, sent: str) -> dict[str, Any] | None:
        """What the answer to a message brings of the one that comes next."""
        return await self._told(BEHIND[sent]) if self.relay.waits else None

    def _maybe_fail(self) -> None:
        if self.relay.fail_next:
            status = self.relay.fail_next.pop()
            raise RemoteError("The coordinator restarts.", code="unavailable", http_status=status)


class Member:
    """A device of an attempt, which can be killed and started again."""

    def __init__(self, folder: Path, relay: Relay, value: int, floor: int = 3) -> None:
        self.folder, self.relay, self.floor = folder, relay, floor
        self.id = ids.new_id(ids.DEVICE)
        self.task = task(relay.terms, self.id)
        relay.tasks[self.id] = self.task
        generator = np.random.Generator(np.random.PCG64(value))
        counts = np.array([1, value % 8, value % 8, 0, 0], np.uint32)
        self.vector = np.concatenate([counts, generator.integers(0, 255 * 8, 40).astype(np.uint32)])
        self.events: list[dict[str, Any]] = []
        self.secrets: list[str] = []
        self.stop = Flag()
        self.store = self._open()
        relay.identities[self.id] = self.store.key.public
        self.store.lease(task=self.task.id, experiment="e", round=1, kind="train", message="{}")

    def _open(self) -> DeviceStore:
        return DeviceStore(self.folder)

    def restart(self) -> None:
        """What a kill and a start make of the device: only its folder remains."""
        self.store.close()
        self.store = self._open()

    def courier(self, faults: DeviceFaults | None = None) -> SecureCourier:
        def emit(event: str, /, **fields: Any) -> None:
            self.events.append({"event": event, **fields})
            if fields.get("message") == "keys":
                self.secrets = self.store.attempts.load(self.task.id).state["secrets"]

        return SecureCourier(
            device=self.id,
            floor=self.floor,
            store=self.store,
            requests=cast(SignedLink, Wire(self.relay, self.id)),
            faults=faults or DeviceFaults(),
            emit=emit,
            stop=self.stop,
            piece=100,
        )

    async def work(self, faults: DeviceFaults | None = None) -> Ended:
        """From wherever the device is to the attempt's end."""
        courier = self.courier(faults)
        if self.store.state_of(self.task.id) == "leased":
            courier.begin(self.task, self.vector, {}, weight=3, steps=1)
        return await courier.carry(self.task)
