"""An edge aggregator under a coordinator that the test plays: one that lies, forgets, vanishes or changes its mind."""

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import numpy as np
import pytest
from edge_kit import devices, joined
from server_kit import RESEARCHER, SCHEMA, SIZE, Device, Opener, Operator, layout, sha256, tiny, update

from coterie.client_sdk.device.backoff import Backoff
from coterie.client_sdk.http import Link
from coterie.protocol.conversion import to_json
from coterie.protocol.device import BlobRef, EdgeTerms, PlanRef, Task
from coterie.protocol.signing import SigningKey, sign_plan
from coterie.protocol.tensors import encode_tensors
from coterie.server.coordinator import Coordinator
from coterie.server.edge.edge import Edge
from coterie.server.edge.membership import KEY
from coterie.server.store.tables import SecretRow
from tests.patience import patience

ME: Final = "dev_" + "1" * 32
NONCE: Final = "a-nonce-that-is-long-enough"
QUICK: Final = Backoff(base_s=0.01, cap_s=0.02)


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


def version(number: int) -> bytes:
    """The model after so many rounds; 0 is the initial one."""
    return encode_tensors(layout().unflatten(np.full(SIZE, number, np.float32)))


@dataclass
class Above:
    """The coordinator above, by hand. offered: the task that a check-in brings; settled, ended: what it says beside it;
    down: whether nobody answers; calls: what was asked of it, without check-ins.
    """

    key: SigningKey = field(default_factory=SigningKey.generate)
    offered: Task | None = None
    settled: dict[str, str] = field(default_factory=dict[str, str])
    ended: list[str] = field(default_factory=list[str])
    over: frozenset[str] = frozenset()
    down: bool = False
    check_ins: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list[tuple[str, str, dict[str, Any]]])

    def task(self, experiment: str, **changes: Any) -> Task:
        """A task for the edge aggregator, of the plan without graphs."""
        plan = tiny().manifest.id
        terms = {"reducer": "mean", "min_clients": 2, "max_clients": 5, "deadline_ms": 60_000}
        terms |= {"selection": "uniform", "min_examples": None, "labels": (), "rest_rounds": 0, "rest_s": 0.0}
        fields: dict[str, Any] = {
            "id": new_id("task"),
            "device": ME,
            "experiment": experiment,
            "round": 1,
            "kind": "train",
            "plan": PlanRef(id=plan, signature=sign_plan(RESEARCHER, plan), signer=RESEARCHER.public),
            "model": BlobRef(sha256=sha256(version(0)), size=len(version(0))),
            "frozen": None,
            "hyper": {},
            "codecs": ("float32",),
            "lease_ms": 60_000,
            "weight_cap": 100,
            "upload_limit": 1 << 20,
            "seed": 1,
            "edge": EdgeTerms.model_validate(terms),
        }
        return Task.model_validate(fields | changes).signed(self.key)

    def answer(self, request: httpx.Request) -> httpx.Response:
        """What this coordinator says to a request."""
        if self.down:
            raise httpx.ConnectError("nobody is there")
        path = request.url.path
        if path.startswith("/v1/blobs/"):
            found = {sha256(data): data for data in (tiny().manifest.data, *map(version, range(8)))}
            data = found.get(path.rpartition("/")[2])
            return (
                httpx.Response(404, json={"code": "blob_unknown"})
                if data is None
                else httpx.Response(200, content=data)
            )
        if path == "/v1/device/population":
            info = {"population": "people", "data_schema": to_json(SCHEMA), "schema_digest": SCHEMA.digest}
            return httpx.Response(
                200, json={**info, "signers": [RESEARCHER.public], "coordinator_key": self.key.public}
            )
        if path == "/v1/device/enrol":
            return httpx.Response(201, json={"device_id": ME, "nonce": NONCE})
        body: dict[str, Any] = {} if path.endswith("/update") else json.loads(request.content or b"{}")
        if path == "/v1/device/check-in":
            self.check_ins.append(body)
            return self._said()
        _, _, _, _, task, act = path.split("/")
        if request.method == "HEAD":
            return self._nonced(200, headers={"Upload-Offset": "0"})
        self.calls.append((act, task, body))
        if task in self.over:
            return self._nonced(409, json={"code": "lease_expired", "detail": "The lease has run out."})
        if act == "update":
            return self._nonced(200, json={"state": "accepted", "sha256": sha256(request.content)})
        return self._nonced(204)

    def _said(self) -> httpx.Response:
        soon = {"min_ms": 10, "max_ms": 20}
        task = None if self.offered is None else self.offered.model_dump(mode="json")
        rest = {"settled": self.settled, "ended": self.ended}
        return self._nonced(200, json={"task": task, "retry_if_accepted": soon, "retry_if_rejected": soon, **rest})

    def _nonced(self, status: int, **content: Any) -> httpx.Response:
        headers = {"Coterie-Nonce": NONCE, **content.pop("headers", {})}
        return httpx.Response(status, headers=headers, **content)

    async def called(self, act: str, task: str) -> dict[str, Any]:
        """Wait until it was asked this of a task; the body."""
        async with asyncio.timeout(patience(60)):
            while True:
                for name, of, body in self.calls:
                    if (name, of) == (act, task):
                        return body
                await asyncio.sleep(0.01)

    async def checked_in(self, more: int = 2) -> None:
        """Wait until the edge aggregator has checked in so often from now on."""
        wanted = len(self.check_ins) + more
        async with asyncio.timeout(patience(60)):
            while len(self.check_ins) < wanted:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def below(above: Above, operator: Operator) -> AsyncGenerator[None, None]:
    """An edge aggregator's loop in the coordinator of this operator."""
    here: Coordinator = operator.app.state.coordinator
    link = Link("http://above.test", transport=httpx.MockTransport(above.answer))
    edge = Edge(
        settings=here.settings.model_copy(update={"upstream_token": "any", "edge_cohort": 2}),
        storage=here.storage,
        rounds=here.rounds,
        bell=here.signals.bell,
        link=link,
        backoff=QUICK,
    )
    loop = asyncio.create_task(edge.run())
    try:
        yield
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await link.close()


def run(coordinator: Opener, story: Callable[[Above, Operator], Awaitable[None]]) -> None:
    """Live through a story with an edge aggregator that has joined."""

    async def inside() -> None:
        above = Above()
        async with coordinator() as operator, asyncio.timeout(patience(60)), below(above, operator):
            await joined(operator, "people")
            await story(above, operator)

    asyncio.run(inside())


async def mirrored(operator: Operator, experiment: str) -> None:
    """Wait until an experiment of above is one here, too."""
    async with asyncio.timeout(patience(60)):
        while not (await operator.call("GET", f"/v1/experiments/{experiment}")).is_success:
            await asyncio.sleep(0.01)


async def answered(operator: Operator, above: Above, task: Task) -> tuple[list[Device], list[str]]:
    """Two devices train in the round that answers a task; they, and their tasks."""
    fleet, names = await devices(operator, "people", 2), list[str]()
    for device in fleet:
        own = await device.task()
        names.append(own.id)
        assert (await device.upload(own, update(own))).is_success
    await above.called("update", task.id)
    return fleet, names


def test_what_was_made_here_does_not_come_back_from_above(coordinator: Opener) -> None:
    """A circle of coordinators: the experiment below must stay as its researcher made it."""

    async def story(above: Above, operator: Operator) -> None:
        experiment = await operator.experiment(rounds=2)
        before = await operator.state(experiment)
        above.offered = above.task(experiment, weight_cap=7)
        told = await above.called("abort", above.offered.id)
        assert told["code"] == "circular_tree"
        assert await operator.state(experiment) == before
        assert [entry["round"] for entry in await operator.rounds(experiment)] == [1]
        (device,) = await devices(operator, "people", 1)
        assert (await device.task()).weight_cap == 100

    run(coordinator, story)


def test_the_coordinator_above_ends_nothing_that_it_was_not_asked_about(coordinator: Opener) -> None:
    async def story(above: Above, operator: Operator) -> None:
        own = await operator.experiment(rounds=2)
        above.ended = [own, new_id("exp")]
        await above.checked_in()
        assert (await operator.state(own))["state"] == "running"
        theirs = above.task(new_id("exp"))
        above.offered = theirs
        (device,) = await devices(operator, "people", 1)
        await mirrored(operator, theirs.experiment)
        assert (await operator.state(theirs.experiment))["state"] == "running"
        assert (await device.check_in())["task"] is not None

    run(coordinator, story)


REFUSED: Final[tuple[tuple[Callable[[Above], Task], str], ...]] = (
    (lambda above: above.task(new_id("exp"), codecs=("float32", "of_the_future:3")), "unknown_codec"),
    (lambda above: above.task(new_id("exp"), device="dev_" + "2" * 32), "task_of_another"),
    (lambda above: above.task(new_id("exp"), edge=None), "task_without_terms"),
    (lambda above: Above().task(new_id("exp")), "signature_invalid"),
    (lambda above: above.task(new_id("exp"), model=BlobRef(sha256="ab" * 32, size=10)), "blob_unknown"),
)


@pytest.mark.parametrize(("make", "code"), REFUSED)
def test_a_task_that_the_edge_does_not_take_is_given_back_with_the_cause(
    coordinator: Opener, make: Callable[[Above], Task], code: str
) -> None:
    async def story(above: Above, operator: Operator) -> None:
        above.offered = make(above)
        assert (await above.called("abort", above.offered.id))["code"] == code
        assert (await operator.ok("GET", "/v1/experiments"))["items"] == []

    run(coordinator, story)


FLOORS: Final[dict[str, dict[str, Any]]] = {
    "secrecy": {"require_secure_aggregation": True},
    "cohort": {"min_cohort": 5},
    "privacy": {"max_epsilon_per_year": 8.0, "delta": 1e-6},
}


@pytest.mark.parametrize("name", sorted(FLOORS))
def test_a_task_below_the_floor_of_the_population_here_is_given_back(coordinator: Opener, name: str) -> None:
    async def story(above: Above, operator: Operator) -> None:
        await operator.ok("PATCH", "/v1/populations/people", json=FLOORS[name])
        above.offered = above.task(new_id("exp"))
        assert (await above.called("abort", above.offered.id))["code"] == "population_policy"
        assert (await operator.ok("GET", "/v1/experiments"))["items"] == []

    run(coordinator, story)


def test_no_second_round_begins_while_one_is_open(coordinator: Opener) -> None:
    """An answer waits for its verdict, so the edge checks in while it is at the next task, and is offered a third: the
    second is over above then, and is withdrawn before the third begins.
    """

    async def story(above: Above, operator: Operator) -> None:
        experiment = new_id("exp")
        first, second, third = (above.task(experiment, round=number) for number in (1, 2, 3))
        above.offered = first
        fleet, names = await answered(operator, above, first)
        above.offered = second
        await operator.until_round(experiment, 2, "collecting")
        async with asyncio.timeout(patience(60)):
            while (await fleet[0].check_in())["task"] is None:
                await asyncio.sleep(0.01)
        above.over, above.offered = frozenset({second.id}), third
        await operator.until_round(experiment, 3, "collecting")
        found = [(entry["round"], entry["state"], entry["cause"]) for entry in await operator.rounds(experiment)]
        assert sorted(found) == [(1, "committed", None), (2, "abandoned", "withdrawn"), (3, "collecting", None)]
        # Only now the first one's verdict comes, while the third is open; it reaches the devices.
        above.settled = {first.id: "counted"}
        async with asyncio.timeout(patience(60)):
            while not (said := (await fleet[1].check_in([names[1]]))["settled"]):
                await asyncio.sleep(0.01)
        assert said == {names[1]: "counted"}

    run(coordinator, story)


def test_a_task_that_comes_twice_is_answered_once(coordinator: Opener) -> None:
    async def story(above: Above, operator: Operator) -> None:
        task = above.task(new_id("exp"))
        above.offered = task
        await answered(operator, above, task)
        await above.checked_in(3)
        assert [act for act, name, _ in above.calls if name == task.id and act == "update"] == ["update"]
        assert [entry["round"] for entry in await operator.rounds(task.experiment)] == [1]

    run(coordinator, story)


def test_nobody_above_is_waited_for_and_the_answer_is_sent_when_somebody_is(coordinator: Opener) -> None:
    async def story(above: Above, operator: Operator) -> None:
        task = above.task(new_id("exp"))
        above.offered = task
        fleet = await devices(operator, "people", 2)
        held = [await device.task() for device in fleet]
        above.down = True
        for device, own in zip(fleet, held, strict=True):
            assert (await device.upload(own, update(own))).is_success
        await operator.until_round(task.experiment, 1, "committed")
        assert (await fleet[0].check_in([held[0].id]))["settled"] == {}
        above.down = False
        await above.called("update", task.id)
        above.settled = {task.id: "rolled_back"}
        async with asyncio.timeout(patience(60)):
            while not (said := (await fleet[0].check_in([held[0].id]))["settled"]):
                await asyncio.sleep(0.01)
        assert said == {held[0].id: "rolled_back"}

    run(coordinator, story)


def test_an_edge_that_starts_before_anybody_is_above_joins_when_somebody_is(coordinator: Opener) -> None:
    async def inside() -> None:
        above = Above(down=True)
        async with coordinator() as operator, asyncio.timeout(patience(60)), below(above, operator):
            await asyncio.sleep(0.1)
            assert (await operator.http.get("/readyz")).is_success
            above.down = False
            await joined(operator, "people")
            await above.checked_in()

    asyncio.run(inside())


def test_an_edge_is_not_moved_to_a_coordinator_with_another_key(coordinator: Opener) -> None:
    async def inside() -> None:
        first, second = Above(), Above()
        async with coordinator() as operator, asyncio.timeout(patience(60)):
            async with below(first, operator):
                await first.checked_in(1)
            async with below(second, operator):
                await asyncio.sleep(0.2)
            assert second.check_ins == []

    asyncio.run(inside())


def test_an_edge_signs_upwards_with_another_key_than_downwards(coordinator: Opener) -> None:
    async def story(above: Above, operator: Operator) -> None:
        here: Coordinator = operator.app.state.coordinator
        async with here.storage.database.read() as session:
            row = await session.get(SecretRow, KEY)
        assert row is not None
        assert SigningKey.from_seed(row.value).public != here.identity.key.public

    run(coordinator, story)


def test_the_versions_of_the_last_rounds_stay_and_older_ones_go(coordinator: Opener) -> None:
    """Devices are sent the difference to a version that they have, so it must still be here."""

    async def story(above: Above, operator: Operator) -> None:
        experiment = new_id("exp")
        for number in range(1, 7):
            model = BlobRef(sha256=sha256(version(number)), size=len(version(number)))
            task = above.task(experiment, round=number, model=model, lease_ms=1500)
            above.offered = task
            await mirrored(operator, experiment)
            await operator.until_round(experiment, number, "collecting")
            above.over |= {task.id}
        held = [
            (await operator.http.head(f"/v1/blobs/{sha256(version(number))}")).status_code for number in range(1, 7)
        ]
        assert held == [404, 404, 200, 200, 200, 200]

    run(coordinator, story)
