"""Rounds with a robust reducer on a real coordinator: a lying device does not move the model."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from secure_kit import events_of
from server_kit import Device, Opener, Operator, fleet, once, update

from coterie.protocol.tensors import decode_tensors
from tests.held_clock import held
from tests.patience import patience


@pytest.mark.parametrize(("text", "value"), [("median", 1.0), ("nnm(1)+trimmed_mean(1)", 1.0), ("mean", 1e5)])
def test_one_lying_device_of_four(coordinator: Opener, text: str, value: float) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            devices = await fleet(operator, await operator.population(), 4)
            request = (await operator.request(rounds=1, cohort=4)).model_copy(update={"reducer": text})
            view = await operator.ok("POST", "/v1/experiments", json=request.model_dump(mode="json"), headers=once())
            for device, told in zip(devices, (1.0, 1.0, 1.0, 1e6), strict=True):
                task = await device.task()
                assert (await device.upload(task, update(task, told))).status_code == 200
            await operator.finished(view["id"])
            model = (await operator.models(view["id"]))[-1]
            answer = await operator.http.get(f"/v1/blobs/{model['sha256']}")
            moved = max(float(np.abs(tensor).max()) for tensor in decode_tensors(answer.content).values())
            assert moved == pytest.approx(1.0, rel=1e-4) if text != "mean" else moved > value

    asyncio.run(work())


def test_the_last_task_is_kept_for_the_trusted_device_which_the_others_are_judged_by(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            devices = await fleet(operator, await operator.population(), 4)
            *others, trusted = devices
            request = await operator.request(rounds=1, cohort=3, reducer="fltrust", trusted=trusted.id)
            view = await operator.ok("POST", "/v1/experiments", json=request.model_dump(mode="json"), headers=once())
            tasks = [await device.task() for device in others[:2]]
            for _ in range(5):
                assert (await others[2].check_in())["task"] is None
            held = await trusted.task()
            # Twice as long as it should be, and turned around; the trusted one is the last to report.
            for device, task, value in zip((*others[:2], trusted), (*tasks, held), (2.0, -5.0, 1.0), strict=True):
                assert (await device.upload(task, update(task, value))).status_code == 200
            await operator.finished(view["id"])
            model = (await operator.models(view["id"]))[-1]
            answer = await operator.http.get(f"/v1/blobs/{model['sha256']}")
            for tensor in decode_tensors(answer.content).values():
                np.testing.assert_allclose(tensor, 1.0, rtol=1e-5)

    asyncio.run(work())


def test_a_round_in_which_the_trusted_device_does_not_report_is_abandoned_and_says_so(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            *others, trusted = await fleet(operator, await operator.population(), 4)
            short: dict[str, Any] = {"rounds": 1, "cohort": 4, "min_updates": 2, "deadline_s": 1.0}
            with held():
                experiment = await operator.experiment(reducer="fltrust", trusted=trusted.id, **short)
                for device in others:
                    task = await device.task()
                    assert (await device.upload(task, update(task, 1.0))).status_code == 200
            entry = await operator.until_round(experiment, 1, "abandoned")
            assert entry["cause"] == "trusted_missing"
            assert len(await operator.models(experiment)) == 1

    asyncio.run(work())


@pytest.mark.parametrize(("min_updates", "cause"), [(2, "trusted_missing"), (4, "too_few_updates")])
def test_no_other_device_gets_the_task_that_a_trusted_one_lost_with_its_lease(
    coordinator: Opener, min_updates: int, cause: str
) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            *others, trusted = await fleet(operator, await operator.population(), 5)
            short: dict[str, Any] = {"cohort": 4, "min_updates": min_updates, "deadline_s": 2.0, "lease_s": 1.0}
            with held() as clock:
                running = await operator.experiment(reducer="fltrust", trusted=trusted.id, rounds=1, **short)
                await trusted.task()
                for device in others[:3]:
                    task = await device.task()
                    assert (await device.upload(task, update(task, 1.0))).status_code == 200
                clock.forward(1.1)
                async with asyncio.timeout(patience(30)):
                    while (await operator.rounds(running))[0]["leased"]:
                        await asyncio.sleep(0.02)
                # The place is free.
                assert (await others[3].check_in())["task"] is None
            entry = await operator.until_round(running, 1, "abandoned")
            assert (entry["cause"], entry["accepted"]) == (cause, 3)

    asyncio.run(work())


async def trusting(operator: Operator, trusted: Device, **policy: Any) -> str:
    """An experiment whose rounds judge by this device, and would wait for an hour."""
    hour: dict[str, Any] = {"cohort": 3, "deadline_s": patience(3600.0), "lease_s": patience(3600.0)}
    return await operator.experiment(reducer="fltrust", trusted=trusted.id, **hour | policy)


async def shut_out(operator: Operator, device: Device) -> None:
    await operator.ok("POST", f"/v1/devices/{device.id}/revoke", headers=once())


@pytest.mark.parametrize("holds", [True, False])
def test_rounds_end_at_once_when_their_trusted_device_is_shut_out(coordinator: Opener, holds: bool) -> None:
    """Whether or not it held its task; and so does every round after, until the experiment has stalled."""

    async def work() -> None:
        async with coordinator() as operator:
            *others, trusted = await fleet(operator, await operator.population(), 3)
            running = await trusting(operator, trusted, rounds=9, min_updates=2)
            beside = await operator.experiment(cohort=3, deadline_s=3600.0)
            tasks = [await device.task() for device in others]
            assert (await others[0].upload(tasks[0], update(tasks[0], 1.0))).status_code == 200
            if holds:
                await trusted.task()
            await shut_out(operator, trusted)
            # In the same transaction: nothing is waited for.
            view = await operator.state(running)
            assert (view["state"], view["reason"]) == ("finished", "stalled")
            entries = await operator.rounds(running)
            assert [(entry["state"], entry["cause"]) for entry in entries] == [("abandoned", "trusted_missing")] * 3
            assert [entry["accepted"] for entry in entries] == [1, 0, 0]
            seen = await events_of(operator, running)
            told = [event["detail"] for event in seen if event["type"] == "round.abandoned"]
            assert len(told) == 3 and all("another trusted client" in detail for detail in told)
            late = await others[1].upload(tasks[1], update(tasks[1], 1.0))
            assert (late.status_code, late.json()["code"]) == (410, "round_closed")
            assert (await operator.state(beside))["state"] == "running"

    asyncio.run(work())


def test_a_round_that_has_the_update_of_a_trusted_device_goes_on_without_the_device(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            *others, trusted = await fleet(operator, await operator.population(), 4)
            running = await trusting(operator, trusted, rounds=2)
            task = await trusted.task()
            assert (await trusted.upload(task, update(task, 1.0))).status_code == 200
            await shut_out(operator, others[2])
            await shut_out(operator, trusted)
            assert (await operator.state(running))["round"] == 1
            for device in others[:2]:
                task = await device.task()
                assert (await device.upload(task, update(task, 1.0))).status_code == 200
            await operator.finished(running)
            entries = await operator.rounds(running)
            assert [entry["state"] for entry in entries] == ["committed", "abandoned"]
            assert entries[1]["cause"] == "trusted_missing"

    asyncio.run(work())


async def gives_up(device: Device) -> None:
    task = await device.task()
    reason = b'{"phase":"training","code":"data_damaged"}'
    assert (await device.send("POST", f"/v1/device/tasks/{task.id}/abort", reason)).status_code == 204


async def sends_rubbish(device: Device) -> None:
    task = await device.task()
    ones, none = (np.full(2, value, "<f4").tobytes() for value in (1, np.nan))
    assert (await device.upload(task, update(task, 1.0).replace(ones, none))).status_code == 422


@pytest.mark.parametrize(("fails", "times", "often"), [(gives_up, 3, "3 times"), (sends_rubbish, 1, "once")])
def test_a_round_ends_at_once_when_its_trusted_device_may_not_try_again(
    coordinator: Opener, fails: Callable[[Device], Awaitable[None]], times: int, often: str
) -> None:
    """Until then it may; and in the next round it may again."""

    async def work() -> None:
        async with coordinator() as operator:
            *others, trusted = await fleet(operator, await operator.population(), 3)
            running = await trusting(operator, trusted, rounds=2)
            for _ in range(times):
                assert (await operator.state(running))["round"] == 1
                await fails(trusted)
            (first, *_) = await operator.rounds(running)
            assert (first["state"], first["cause"]) == ("abandoned", "trusted_missing")
            (told,) = [one for one in await events_of(operator, running) if one["type"] == "round.abandoned"]
            assert f"failed {often} in this round" in told["detail"]
            for device in (trusted, *others):
                task = await device.task()
                assert (await device.upload(task, update(task, 1.0))).status_code == 200
            await operator.finished(running)
            assert [entry["state"] for entry in await operator.rounds(running)] == ["abandoned", "committed"]

    asyncio.run(work())


def test_a_trusted_device_that_there_is_not_is_refused(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            await operator.population()
            stranger = (await fleet(operator, await operator.population("others"), 1))[0].id
            for name in (stranger, "3", stranger[:16]):
                request = await operator.request(cohort=3, reducer="fltrust", trusted=name)
                answer = await operator.call(
                    "POST", "/v1/experiments", json=request.model_dump(mode="json"), headers=once()
                )
                assert answer.status_code == 422 and answer.json()["code"] == "trusted_unknown"
                assert "coterie list devices --json" in answer.json()["hint"]

    asyncio.run(work())


@pytest.mark.parametrize(("text", "code"), [("krum(2)", "reducer_updates"), ("mode", "unknown_reducer")])
def test_a_reducer_that_cannot_work_is_refused_when_the_experiment_is_created(
    coordinator: Opener, text: str, code: str
) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            await operator.population()
            request = (await operator.request(cohort=4)).model_dump(mode="json") | {"reducer": text}
            answer = await operator.call("POST", "/v1/experiments", json=request, headers=once())
            assert answer.status_code == 422 and answer.json()["code"] == code

    asyncio.run(work())
