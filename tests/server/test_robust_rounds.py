"""Rounds with a robust reducer on a real coordinator: a lying device does not move the model."""

import asyncio

import numpy as np
import pytest
from server_kit import Opener, fleet, once, update

from coterie.protocol.tensors import decode_tensors


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
            request = await operator.request(
                rounds=1, cohort=4, min_updates=2, deadline_s=1.0, reducer="fltrust", trusted=trusted.id
            )
            view = await operator.ok("POST", "/v1/experiments", json=request.model_dump(mode="json"), headers=once())
            for device in others:
                task = await device.task()
                assert (await device.upload(task, update(task, 1.0))).status_code == 200
            entry = await operator.until_round(view["id"], 1, "abandoned")
            assert entry["cause"] == "trusted_missing"
            assert len(await operator.models(view["id"])) == 1

    asyncio.run(work())


@pytest.mark.parametrize(("min_updates", "cause"), [(2, "trusted_missing"), (4, "too_few_updates")])
def test_no_other_device_gets_the_task_that_a_trusted_one_lost_with_its_access(
    coordinator: Opener, min_updates: int, cause: str
) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            *others, trusted = await fleet(operator, await operator.population(), 5)
            request = await operator.request(
                rounds=1,
                cohort=4,
                min_updates=min_updates,
                deadline_s=3.0,
                lease_s=1.0,
                reducer="fltrust",
                trusted=trusted.id,
            )
            view = await operator.ok("POST", "/v1/experiments", json=request.model_dump(mode="json"), headers=once())
            await trusted.task()
            await operator.ok("POST", f"/v1/devices/{trusted.id}/revoke", headers=once())
            for device in others[:3]:
                task = await device.task()
                assert (await device.upload(task, update(task, 1.0))).status_code == 200
            await asyncio.sleep(1.2)  # its lease is over: the place is free
            assert (await others[3].check_in())["task"] is None
            entry = await operator.until_round(view["id"], 1, "abandoned")
            assert (entry["cause"], entry["accepted"]) == (cause, 3)

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
