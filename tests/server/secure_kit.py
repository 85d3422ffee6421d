"""Honest clients of secure aggregation over HTTP: the machine of the protocol, and devices that carry its messages."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from os import urandom
from typing import Any, Final

import httpx
import numpy as np
from pydantic import BaseModel
from server_kit import Device, Operator, Recipe, fleet, sha256, tiny
from sqlalchemy import func, select, update

from coterie.aggregation.evaluate import evaluation_sections
from coterie.aggregation.plan.manifest import DELTA
from coterie.privacy.secagg import client
from coterie.privacy.secagg.encoding import Binding, encode, vector_spec
from coterie.privacy.secagg.masked_file import MaskedHeader, encode_masked
from coterie.privacy.secagg.roster import model_digest
from coterie.protocol.device import Task
from coterie.protocol.metrics import METRICS, MetricSums
from coterie.protocol.secagg import Agreements, Outcome, Roster, SecureTerms, SharesFor, Survivors
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.tensors import decode_tensors
from coterie.server.store import attempts
from coterie.server.store.tables import AttemptRow, EventRow, MailboxRow
from tests.patience import patience

MESSAGES: Final[dict[str, type[BaseModel]]] = {
    "roster": Roster,
    "shares": SharesFor,
    "survivors": Survivors,
    "agreements": Agreements,
    "outcome": Outcome,
}
STEPS: Final = ("keys", "shares", "masked", "agreement", "reveal")
"""What a client does, in order; only in the mode ``consistent`` is there an agreement."""


def secure(**changes: Any) -> SecureAggregation:
    """Secure aggregation among few clients: one of five may vanish, and phases are long."""
    fields: dict[str, Any] = {"norm": 10.0, "corrupt": 0.0, "dropout": 0.2, "phase_s": 60.0, **changes}
    return SecureAggregation(**fields)


class OutOfAttempt(Exception):
    """The coordinator said that the attempt goes on without this client, or is over. The code and the cause."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem["code"], problem.get("cause"))
        self.code, self.cause = problem["code"], problem.get("cause")


@dataclass
class Member:
    """A device, its task and the state of its machine. value: of its update everywhere; weight: its examples."""

    device: Device
    task: Task
    value: float
    weight: int = 10
    recipe: Recipe = field(default_factory=tiny)
    state: client.ClientState | None = None
    keys: bytes = b""
    said: dict[str, bytes] = field(default_factory=dict[str, bytes])
    vector: bytes = b""

    @property
    def terms(self) -> SecureTerms:
        """What its task says of secure aggregation."""
        assert self.task.secure is not None
        return self.task.secure

    @property
    def consistent(self) -> bool:
        """Whether survivors are signed."""
        return self.terms.mode == "consistent"

    def path(self, what: str) -> str:
        """A route of its attempt."""
        return f"/v1/device/tasks/{self.task.id}/secure/{what}"

    async def say(self, what: str, body: bytes) -> httpx.Response:
        """Send a message, and remember it for its repetition."""
        self.said[what] = body
        return await self.device.send("POST", self.path(what), body)

    async def told(self, what: str, wait_ms: int = 20_000) -> Any:
        """Wait for a message. Raises OutOfAttempt."""
        while True:
            answer = await self.device.send("GET", self.path(f"{what}?wait_ms={wait_ms}"))
            if answer.status_code == 200:
                return MESSAGES[what].model_validate_json(answer.content)
            if answer.status_code != 204:
                raise OutOfAttempt(answer.json())

    async def answer(self, awaited: str, what: str) -> None:
        """Wait for a message, and say what the machine answers. The state comes first, as on a real device."""
        message = await self.told(awaited)
        assert self.state is not None
        self.state, reply = client.step(self.state, message, identity=self.device.key)
        if reply is not None:
            accepted(await self.say(what, reply.model_dump_json().encode()))

    async def bring_keys(self) -> None:
        """Trained."""
        accepted(await self.say("keys", self.make_keys()))

    def make_keys(self) -> bytes:
        """The keys, the same each time."""
        if not self.keys:
            self.state, keys = client.begin(
                self.terms,
                device=self.device.id,
                plan=self.task.plan.id,
                model=model_digest(self.task),
                identity=self.device.key,
            )
            self.keys = keys.model_dump_json().encode()
        return self.keys

    async def deal(self) -> None:
        """Shares for the neighbours."""
        await self.answer("roster", "shares")

    async def send_vector(self) -> None:
        """The masked vector."""
        message = await self.told("shares")
        assert self.state is not None
        self.state, _ = client.step(self.state, message, identity=self.device.key)
        accepted(await self.device.upload(self.task, self.masked()))

    async def agree(self) -> None:
        """The signed list of survivors."""
        await self.answer("survivors", "agreement")

    async def reveal(self) -> None:
        """What opens the sum."""
        await self.answer("agreements" if self.consistent else "survivors", "reveal")

    def masked(self) -> bytes:
        """The file of the masked vector."""
        if not self.vector:
            assert self.state is not None
            plan = self.recipe.manifest
            self.state, packed = client.mask(self.state, self.numbers())
            header = MaskedHeader(
                self.terms.attempt,
                self.task.id,
                plan.id,
                self.task.model.sha256,
                vector_spec(self.terms.sections).digest,
            )
            self.vector = encode_masked(header, packed)
        return self.vector

    def numbers(self) -> Any:
        """The update in the ring."""
        plan = self.recipe.manifest
        sums = np.array((self.weight, 0.5 * self.weight, 0.75 * self.weight), np.float64)
        if self.task.kind == "train":
            sections = {DELTA: np.full(plan.layout.size, self.value, np.float32), METRICS: sums}
        else:
            sections = evaluation_sections(plan, MetricSums.from_vector(plan.metrics, sums))
        return encode(
            self.terms.sections,
            plan.sections_for(self.task.kind),
            sections,
            weight=self.weight,
            weight_cap=self.terms.weight_cap,
            binding=Binding(plan.id, self.task.model.sha256),
            entropy=urandom,
        ).vector

    async def do(self, step: str) -> None:
        """One step of STEPS."""
        if step == "agreement" and not self.consistent:
            return
        acts: dict[str, Callable[[], Awaitable[None]]] = {
            "keys": self.bring_keys,
            "shares": self.deal,
            "masked": self.send_vector,
            "agreement": self.agree,
            "reveal": self.reveal,
        }
        await acts[step]()


def accepted(answer: httpx.Response) -> None:
    """Hold an answer to success. Raises OutOfAttempt where the attempt went on without this client."""
    if answer.status_code == 410:
        raise OutOfAttempt(answer.json())
    assert answer.status_code == 200, answer.text


async def leased(
    devices: Sequence[Device],
    values: Sequence[float],
    weights: Sequence[int] | None = None,
    recipe: Recipe | None = None,
) -> list[Member]:
    """Each device with a task of the round that is open."""
    tasks = [await device.task() for device in devices]
    given = weights or [10] * len(devices)
    return [
        Member(device, task, value, weight, recipe or tiny())
        for device, task, value, weight in zip(devices, tasks, values, given, strict=True)
    ]


async def together(members: Sequence[Member], steps: Sequence[str] = STEPS) -> None:
    """All of these members, each step at once."""
    for step in steps:
        await asyncio.gather(*(member.do(step) for member in members))


async def started(
    operator: Operator, count: int, asked: SecureAggregation | None = None, reducer: str = "mean", **policy: Any
) -> tuple[str, list[Device]]:
    """An experiment of secure rounds, and devices for them."""
    token = await operator.population()
    policy = {"rounds": 1, "cohort": count, "min_updates": max(count - 1, 1), **policy}
    experiment = await operator.experiment(secure=asked or secure(), reducer=reducer, **policy)
    return experiment, await fleet(operator, token, count)


def mean(members: Sequence[Member]) -> float:
    """What the members' updates average to."""
    return sum(member.value * member.weight for member in members) / sum(member.weight for member in members)


def digest(member: Member) -> str:
    """The name of a member's masked vector in the store."""
    return sha256(member.masked())


async def lapse(operator: Operator) -> None:
    """Let the time of every attempt's phase be over now."""
    async with operator.app.state.coordinator.storage.database.write("attempt") as session:
        await session.execute(update(AttemptRow).where(AttemptRow.deadline_at.is_not(None)).values(deadline_at=1))


async def attempt_of(operator: Operator) -> AttemptRow:
    """The only attempt there is."""
    async with operator.app.state.coordinator.storage.database.read() as session:
        return (await session.execute(select(AttemptRow))).scalar_one()


async def until_phase(operator: Operator, phase: str, seconds: float = 30) -> AttemptRow:
    """Wait until the only attempt is in a phase."""
    async with asyncio.timeout(patience(seconds)):
        while (row := await attempt_of(operator)).phase != phase:
            await asyncio.sleep(0.01)
    return row


async def mailed(operator: Operator) -> dict[str, int]:
    """How many rows the mailbox has, by phase."""
    async with operator.app.state.coordinator.storage.database.read() as session:
        query = select(MailboxRow.stage, func.count()).group_by(MailboxRow.stage)
        return {row[0]: row[1] for row in await session.execute(query)}


async def events_of(operator: Operator, experiment: str) -> list[dict[str, Any]]:
    """The events of an experiment so far: type and data."""
    async with operator.app.state.coordinator.storage.database.read() as session:
        query = select(EventRow.type, EventRow.data).where(EventRow.experiment == experiment).order_by(EventRow.id)
        return [{"type": kind, **json.loads(data)} for kind, data in await session.execute(query)]


LOOSE = 2e-3
"""A grid of 16 bits over a norm of 10 is a little finer than this."""


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run an asynchronous test."""
    asyncio.run(work)


async def weights(operator: Operator, sha256: str) -> np.ndarray[Any, Any]:
    """The numbers of a model version, in layout order."""
    tensors = decode_tensors((await operator.http.get(f"/v1/blobs/{sha256}")).content)
    return np.concatenate([tensors["w"], tensors["b"]])


async def until_clean(operator: Operator) -> None:
    """Nothing is left of an attempt but its row: no message, no state, no masked vector, no running sum."""
    here = operator.app.state.coordinator
    async with asyncio.timeout(patience(30)):
        while (
            await mailed(operator)
            or await here.storage.blobs.stored("updates")
            or any(here.storage.blobs.scratch.iterdir())
        ):
            await asyncio.sleep(0.02)
    async with here.storage.database.read() as session:
        assert await attempts.state_of(session, (await attempt_of(operator)).id) is None
