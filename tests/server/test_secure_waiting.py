"""A message whose sender waits for the next one: it is kept first, and the answer brings what comes next, or says that
it did not come in time.
"""

import asyncio
import time
from typing import Any, Final

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from secure_kit import MESSAGES, Member, lapse, leased, mailed, run, secure, started, together
from server_kit import Opener, Operator

from coterie.privacy.secagg import client
from coterie.protocol.secagg import Agreement, Reveal, Shares
from coterie.server.device import waiting
from tests.patience import patience

VALUES: Final = (1.0, 2.0, 0.5, -1.0, 3.0)
LONG: Final = "?wait_ms=20000"
SAID: Final[dict[type[Any], str]] = {Shares: "shares", Agreement: "agreement", Reveal: "reveal"}


async def send(member: Member, step: str, body: bytes, query: str = LONG) -> httpx.Response:
    if step == "masked":
        return await member.device.upload(member.task, body, query=query)
    return await member.device.send("POST", member.path(step + query), body)


def answered(member: Member, step: str, heard: dict[str, Any]) -> tuple[str, bytes]:
    """The step that follows, and what it says, after what came behind a step."""
    assert member.state is not None
    message: Any = MESSAGES[waiting.AFTER[step]].model_validate(heard)
    member.state, said = client.step(member.state, message, identity=member.device.key)
    return ("masked", member.masked()) if said is None else (SAID[type(said)], said.model_dump_json().encode())


async def through(member: Member, until: str = "reveal") -> dict[str, Any]:
    """Bring a member up to a step, with nothing sent beside its messages. Returns the answer to that step."""
    step, body = "keys", member.make_keys()
    while True:
        answer = await send(member, step, body)
        assert (answer.status_code, answer.json()["state"]) == (200, "accepted"), answer.text
        if step == until:
            return answer.json()
        step, body = answered(member, step, answer.json()["next"])


async def opened(operator: Operator, **asked: Any) -> tuple[str, list[Member]]:
    experiment, devices = await started(operator, len(VALUES), secure(**asked))
    return experiment, await leased(devices, VALUES)


async def until_waiting(operator: Operator, step: str, count: int = 1) -> None:
    """So many messages of a step are kept, and somebody waits."""
    async with asyncio.timeout(patience(10)):
        while (await mailed(operator)).get(step) != count or not turns(operator):
            await asyncio.sleep(0.01)


def turns(operator: Operator) -> frozenset[str]:
    return operator.app.state.coordinator.signals.turns.waited_for()


@pytest.mark.parametrize("mode", ["semi_honest", "consistent"])
def test_an_attempt_needs_no_question_beside_its_messages(mode: str, coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, members = await opened(operator, mode=mode)
            answers = await asyncio.gather(*(through(member) for member in members))
            assert [answer["next"]["state"] for answer in answers] == ["summed"] * len(VALUES)
            await operator.finished(experiment)

    run(work())


def test_who_does_not_wait_is_answered_at_once(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            _, members = await opened(operator)
            begun = time.monotonic()
            answer = await send(members[0], "keys", members[0].make_keys(), "")
            assert answer.json() == {"state": "accepted"}
            assert time.monotonic() - begun < waiting.LOOK_AGAIN_S

    run(work())


def test_a_wait_that_ends_says_that_the_message_is_kept(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            _, members = await opened(operator)
            one, *others = members
            answer = await send(one, "keys", one.make_keys(), "?wait_ms=50")
            assert answer.json() == {"state": "accepted"}
            assert await mailed(operator) == {"keys": 1}
            await together(others, ["keys"])
            # What comes next is there for a question, too, and for the same message sent again.
            assert await one.told("roster")
            again = await send(one, "keys", one.make_keys())
            assert again.json()["state"] == "already" and again.json()["next"]["clients"] == len(VALUES)

    run(work())


async def seconds(operator: Operator, metric: str, route: str) -> float | None:
    """The sum of a histogram at ``/metrics`` for a route; None where it was never noted."""
    text = (await operator.http.get("/metrics")).text
    sums = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return next((s.value for s in sums if s.name == f"{metric}_sum" and s.labels["route"] == route), None)


@pytest.mark.parametrize("ask", ["behind a message", "alone"])
def test_metrics_tell_a_wait_from_the_time_to_answer(ask: str, coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            _, (one, *_) = await opened(operator)
            keys, roster = (f"/v1/device/tasks/{{task}}/secure/{what}" for what in ("keys", "{awaited}"))
            await send(one, "keys", one.make_keys(), "?wait_ms=0")
            assert await seconds(operator, "coterie_wait_seconds", keys) is None
            route, before = (keys, await seconds(operator, "coterie_request_seconds", keys) or 0.0)
            began = time.monotonic()
            if ask == "alone":
                route, before = roster, 0.0
                assert (await one.device.send("GET", one.path("roster?wait_ms=3000"))).status_code == 204
            else:
                assert (await send(one, "keys", one.make_keys(), "?wait_ms=3000")).json() == {"state": "already"}
            took = time.monotonic() - began
            waited = await seconds(operator, "coterie_wait_seconds", route)
            assert waited is not None and 1.5 < waited < took
            answered = await seconds(operator, "coterie_request_seconds", route)
            assert answered is not None and answered - before <= took - waited

    run(work())


@pytest.mark.parametrize("step", ["keys", "shares", "masked"])
def test_a_message_is_kept_before_its_sender_waits(step: str, coordinator: Opener) -> None:
    """A client that is killed while it waits has said what it said, and hears the rest when it says it again."""

    async def work() -> None:
        async with coordinator() as operator:
            _, members = await opened(operator)
            one, *others = members
            bodies: dict[str, bytes] = {}

            async def remembered(member: Member) -> None:
                at, body = "keys", member.make_keys()
                while at != step:
                    at, body = answered(member, at, (await send(member, at, body)).json()["next"])
                bodies[member.device.id] = body

            await asyncio.gather(*(remembered(member) for member in members))
            killed = asyncio.create_task(send(one, step, bodies[one.device.id]))
            await until_waiting(operator, step)
            killed.cancel()
            await asyncio.gather(killed, return_exceptions=True)
            answers = await asyncio.gather(*(send(each, step, bodies[each.device.id]) for each in members))
            assert [answer.json()["state"] for answer in answers] == ["already", *["accepted"] * len(others)]
            assert all(answer.json()["next"] for answer in answers)

    run(work())


def test_a_phase_that_ends_without_everybody_answers_who_waits(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            _, members = await opened(operator)
            await together(members, ["keys"])
            *present, missing = members
            waits = [asyncio.create_task(dealt(member)) for member in present]
            await until_waiting(operator, "shares", len(present))
            await lapse(operator)
            operator.app.state.coordinator.signals.bell.ring()
            for answer in await asyncio.gather(*waits):
                assert len(answer.json()["next"]["boxes"]) == len(present) - 1
            late = await dealt(missing)
            assert (late.status_code, late.json()["code"]) == (410, "phase_over")

    async def dealt(member: Member) -> httpx.Response:
        roster = (await member.told("roster")).model_dump(mode="json")
        return await send(member, *answered(member, "keys", roster))

    run(work())


def test_a_stop_answers_who_waits(coordinator: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOK_AGAIN_S", 3600.0)  # whoever waits is woken

    async def work() -> None:
        async with coordinator() as operator:
            experiment, members = await opened(operator)
            await together(members, ["keys", "shares"])
            one = members[0]
            shares = (await one.told("shares")).model_dump(mode="json")
            wait = asyncio.create_task(send(one, *answered(one, "shares", shares)))
            await until_waiting(operator, "masked")
            await operator.ok("POST", f"/v1/experiments/{experiment}/stop")
            answer = await asyncio.wait_for(wait, patience(10))
            assert (answer.status_code, answer.json()["code"]) == (410, "attempt_over")

    run(work())


def test_of_the_waits_of_one_task_the_newest_goes_on(coordinator: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device makes the coordinator hold one wait for each task, however many connections it opens."""
    monkeypatch.setattr(waiting, "LOOK_AGAIN_S", 3600.0)

    async def work() -> None:
        async with coordinator() as operator:
            _, members = await opened(operator)
            one, *others = members
            first = asyncio.create_task(send(one, "keys", one.make_keys()))
            await until_waiting(operator, "keys")
            again = [asyncio.create_task(send(one, "keys", one.make_keys())) for _ in range(5)]
            answers = [(await asyncio.wait_for(first, patience(10))).json()]
            done, left = await asyncio.wait(again, timeout=patience(2))
            answers += [task.result().json() for task in done]
            assert [answer.get("next") for answer in answers] == [None] * 5 and len(left) == 1
            await together(others, ["keys"])
            (newest,) = left
            assert (await asyncio.wait_for(newest, patience(10))).json()["next"]["clients"] == len(VALUES)

    run(work())


def test_a_coordinator_that_closes_answers_who_waits(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            _, members = await opened(operator)
            wait = asyncio.create_task(send(members[0], "keys", members[0].make_keys()))
            await until_waiting(operator, "keys")
            operator.app.state.coordinator.signals.hang_up()
            async with asyncio.timeout(waiting.LOOK_AGAIN_S / 2):
                assert (await wait).json() == {"state": "accepted"}

    run(work())


def test_a_wait_that_is_too_long_is_refused_and_nothing_is_kept(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            _, members = await opened(operator)
            answer = await send(members[0], "keys", members[0].make_keys(), "?wait_ms=30001")
            assert answer.status_code == 422 and not await mailed(operator)

    run(work())
