"""A worker that dies again and again costs time, and no update that was accepted."""

import asyncio
import contextlib
import os
import signal

import pytest
from server_kit import Opener, fleet, update
from structlog.testing import capture_logs

from coterie.server.coordinator import Coordinator
from coterie.server.jobs import runner
from tests.patience import patience


def children() -> list[int]:
    """The worker processes of this process."""
    path = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    found: list[int] = []
    with open(path, encoding="ascii") as file:
        for number in map(int, file.read().split()):
            with contextlib.suppress(OSError), open(f"/proc/{number}/cmdline", encoding="utf-8") as words:
                if "coterie.server.worker.process" in words.read():
                    found.append(number)
    return found


def test_updates_outlive_workers_that_die_in_every_attempt(
    coordinator: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RETRY_S", 0.05)

    async def check() -> None:
        async with coordinator(aggregate_attempts=2) as operator:
            token = await operator.population()
            experiment = await operator.experiment(rounds=1, cohort=2)
            devices = await fleet(operator, token, 2)
            given = [await device.task() for device in devices]
            killed: set[int] = set()

            async def kill() -> None:
                while len(killed) < 5:
                    for number in children():
                        if number not in killed:
                            os.kill(number, signal.SIGKILL)
                            killed.add(number)
                    await asyncio.sleep(0.01)

            killing = asyncio.create_task(kill())
            with capture_logs() as logs:
                for device, task in zip(devices, given, strict=True):
                    await device.upload(task, update(task))
                async with asyncio.timeout(patience(60)):
                    await killing
                assert (await operator.finished(experiment))["reason"] == "completed"
            (record,) = await operator.rounds(experiment)
            assert (record["state"], record["accepted"]) == ("committed", 2)
            said = [entry for entry in logs if entry["event"] == "round cannot go on yet"]
            assert len(said) >= 2 and all("died or hung" in entry["why"] for entry in said)
            assert said[1]["again_s"] > said[0]["again_s"]
            here: Coordinator = operator.app.state.coordinator
            count = here.metrics.registry.get_sample_value
            async with asyncio.timeout(patience(10)):
                while count("coterie_rounds_total", {"outcome": "committed"}) != 1:
                    await asyncio.sleep(0.01)

    asyncio.run(check())
