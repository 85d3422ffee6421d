"""Buffered rounds over HTTP: what lags weighs less, what waits is not lost, what is too old is closed by name."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_kit import Device, Opener, Operator, fleet, update

from coterie.protocol.device import Task
from coterie.protocol.tensors import decode_tensors
from coterie.server.settings import Settings
from coterie.server.worker.workers import Workers
from tests.held_clock import held
from tests.patience import patience


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run an asynchronous test."""
    asyncio.run(work)


async def weight(operator: Operator, sha256: str) -> float:
    """The number that all weights of a version are, since every update here moves all of them alike."""
    tensors = decode_tensors((await operator.http.get(f"/v1/blobs/{sha256}")).content)
    (value,) = set(np.concatenate([tensor.reshape(-1) for tensor in tensors.values()]).tolist())
    return value


async def send(device: Device, task: Task, value: float, weight: int = 10) -> None:
    """Upload an update that must be accepted."""
    answer = await device.upload(task, update(task, value, weight=weight))
    assert answer.status_code == 200, answer.text


BUFFERED: dict[str, Any] = {"mode": "buffered", "evaluate_every": 0}


def test_an_update_of_an_older_version_weighs_less(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            one, two, three = await fleet(operator, await operator.population(), 3)
            experiment = await operator.experiment(rounds=2, cohort=2, concurrency=3, **BUFFERED)
            tasks = [await device.task() for device in (one, two, three)]
            await send(one, tasks[0], 1.0)
            await send(two, tasks[1], 3.0)
            first = await operator.until_round(experiment, 1, "committed")
            fresh = await one.task()
            assert (fresh.round, fresh.model.sha256) == (2, first["model"])
            await send(three, tasks[2], 4.0, weight=20)
            await send(one, fresh, 1.0, weight=20)
            await operator.finished(experiment)
            # With momentum 0.5 the second step is 0.5 * 2 + the mean, where three lags by one version.
            late = 20 / 2**0.5
            mean = (late * 4.0 + 20 * 1.0) / (late + 20)
            models = await operator.models(experiment)
            assert await weight(operator, models[1]["sha256"]) == 2.0
            assert np.isclose(await weight(operator, models[2]["sha256"]), 2.0 + 1.0 + mean)
            settled = [
                (await d.check_in([t.id]))["settled"][t.id] for d, t in zip((one, two, three), tasks, strict=True)
            ]
            assert settled == ["counted"] * 3
            listed = [entry["participants"] for entry in await operator.rounds(experiment)]
            assert [{p["client"]: p["lag"] for p in found} for found in listed] == [
                {one.id: 0, two.id: 0},
                {one.id: 0, three.id: 1},
            ]
            assert all(isinstance(p["loss"], float) for found in listed for p in found)

    run(work())


@pytest.mark.parametrize("restart", [False, True])
def test_an_update_that_comes_while_the_round_aggregates_counts_in_the_next(
    restart: bool, coordinator: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        gate = asyncio.Event()
        whole = Workers.run

        async def held(self: Workers, job: str, arguments: Any) -> dict[str, Any]:
            await gate.wait()
            return await whole(self, job, arguments)

        monkeypatch.setattr(Workers, "run", held)
        async with coordinator() as operator:
            one, two = await fleet(operator, await operator.population(), 2)
            experiment = await operator.experiment(rounds=2, cohort=1, concurrency=2, lr=1.0, **BUFFERED)
            first, second = await one.task(), await two.task()
            await send(one, first, 1.0)
            await operator.until_round(experiment, 1, "aggregating")
            await send(two, second, 5.0)
            assert (await operator.rounds(experiment))[0]["accepted"] == 1
            # One device has one say: its update waits, so there is no task for it.
            assert (await two.check_in([second.id]))["task"] is None
            if not restart:
                gate.set()
                await operator.finished(experiment)
        gate.set()
        async with coordinator() as operator:
            one.http = two.http = operator.http
            await operator.finished(experiment)
            assert [entry["accepted"] for entry in await operator.rounds(experiment)] == [1, 1]
            models = await operator.models(experiment)
            assert await weight(operator, models[2]["sha256"]) == 1.0 + 0.5 * 1.0 + 5.0
            assert (await two.check_in([second.id]))["settled"] == {second.id: "counted"}

    run(work())


def test_what_lags_by_more_than_the_cap_is_closed_by_name(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            one, two = await fleet(operator, await operator.population(), 2)
            experiment = await operator.experiment(rounds=2, cohort=1, concurrency=2, staleness_cap=0, **BUFFERED)
            first, second = await one.task(), await two.task()
            await send(one, first, 1.0)
            await operator.until_round(experiment, 1, "committed")
            answer = await two.upload(second, update(second, 9.0))
            assert (answer.status_code, answer.json()["code"]) == (410, "stale_update")
            assert (await two.check_in([second.id]))["settled"] == {second.id: "rolled_back"}
            after = await two.task()
            assert after.round == 2
            await send(two, after, 2.0)
            await operator.finished(experiment)
            models = await operator.models(experiment)
            assert await weight(operator, models[2]["sha256"]) == 1.0 + 0.5 * 1.0 + 2.0

    run(work())


def test_a_deadline_passes_the_buffer_on(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            one, two = await fleet(operator, await operator.population(), 2)
            # Only the first deadline passes, and only when the first update is there.
            with held() as clock:
                experiment = await operator.experiment(rounds=3, cohort=2, deadline_s=1.0, **BUFFERED)
                task = await one.task()
                await send(one, task, 1.0)
                clock.forward(1.1)
                await operator.until_round(experiment, 1, "abandoned")
                late = await two.task()
                await send(two, late, 3.0)
                entry = await operator.until_round(experiment, 2, "committed")
            assert entry["accepted"] == 2 and await weight(operator, entry["model"]) == 2.0
            await operator.ok("POST", f"/v1/experiments/{experiment}/stop")
            assert (await one.check_in([task.id]))["settled"] == {task.id: "counted"}

    run(work())


def test_the_end_takes_back_what_is_out_and_leaves_no_file(coordinator: Opener, settings: Settings) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            one, two, three = await fleet(operator, await operator.population(), 3)
            experiment = await operator.experiment(rounds=1, cohort=1, concurrency=3, **BUFFERED)
            tasks = [await device.task() for device in (one, two, three)]
            answer = await two.send("POST", f"/v1/device/tasks/{tasks[1].id}/abort", b'{"phase":"training","code":"x"}')
            assert answer.status_code == 204
            await send(one, tasks[0], 1.0)
            await operator.finished(experiment)
            answer = await three.upload(tasks[2], update(tasks[2]))
            assert (answer.status_code, answer.json()["code"]) == (410, "round_closed")
            (entry,) = await operator.rounds(experiment)
            assert (entry["accepted"], entry["failed"], entry["leased"]) == (1, 1, 0)
            await until_no_update_is_left(settings.folder)

    run(work())


def test_a_begun_upload_whose_task_is_lost_rounds_later_leaves_no_file(coordinator: Opener, settings: Settings) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            one, two = await fleet(operator, await operator.population(), 2)
            with held() as clock:
                experiment = await operator.experiment(rounds=3, cohort=1, concurrency=2, lease_s=1.0, **BUFFERED)
                first, slow = await one.task(), await two.task()
                data = update(slow)
                assert (await two.upload(slow, data, part=data[:100])).status_code == 204
                await send(one, first, 1.0)
                await operator.until_round(experiment, 1, "committed")
                partial = settings.folder / "blobs" / "parts" / slow.id
                assert partial.exists()
                clock.forward(1.1)
                async with asyncio.timeout(patience(60)):
                    while (await two.send("HEAD", f"/v1/device/tasks/{slow.id}/update")).status_code != 410:
                        await asyncio.sleep(0.1)
                for number in (2, 3):
                    await send(one, await one.task(), 1.0)
                    await operator.until_round(experiment, number, "committed")
                async with asyncio.timeout(patience(60)):
                    while partial.exists():
                        await asyncio.sleep(0.02)

    run(work())


def test_who_rests_counts_from_the_round_that_counted_its_update(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            one, two, three = await fleet(operator, await operator.population(), 3)
            experiment = await operator.experiment(rounds=4, cohort=1, concurrency=3, rest_rounds=1, **BUFFERED)
            first, second = await one.task(), await two.task()
            await send(one, first, 1.0)
            await operator.until_round(experiment, 1, "committed")
            await send(two, second, 1.0)  # of the first round, counted in the second
            await operator.until_round(experiment, 2, "committed")
            assert (await two.check_in([second.id]))["task"] is None
            assert (await one.task()).round == (await three.task()).round == 3

    run(work())


def test_a_stop_drops_what_waits(coordinator: Opener, settings: Settings) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            one, two = await fleet(operator, await operator.population(), 2)
            experiment = await operator.experiment(rounds=3, cohort=2, **BUFFERED)
            task = await one.task()
            await send(one, task, 1.0)
            other = await two.task()
            await operator.ok("POST", f"/v1/experiments/{experiment}/stop")
            assert (await two.upload(other, update(other))).json()["code"] == "round_closed"
            assert (await one.check_in([task.id]))["settled"] == {task.id: "rolled_back"}
            await until_no_update_is_left(settings.folder)

    run(work())


async def until_no_update_is_left(folder: Path) -> None:
    """The files of updates go when their round has ended."""
    async with asyncio.timeout(patience(60)):
        while any(path.is_file() for path in (folder / "blobs" / "updates").rglob("*")):
            await asyncio.sleep(0.02)
