"""Updates that cannot be used, and devices that say why they gave up, in rounds that promise privacy: the round goes on
and is paid for, and nothing that is published says of whom or why.
"""

import json

import numpy as np
import pytest
from budget_kit import budget, entries, private, run, started, weights
from secure_kit import events_of
from server_kit import Device, Opener, Operator, fleet, planted, update

from coterie.privacy.ledger.events import Limit, Reserve, Spend
from tests.held_clock import held

WRONG = (np.nan, np.inf)


async def published(operator: Operator, experiment: str) -> str:
    """All events of an experiment, as text."""
    return json.dumps(await events_of(operator, experiment))


async def deliver_wrong(device: Device, value: float) -> None:
    """An update with a number that is not finite, which is taken like any other."""
    task = await device.task()
    answer = await device.upload(task, planted(task, value, weight=1))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("count", [1, 2])
def test_an_update_that_is_not_finite_counts_as_zeros_of_a_device_that_is_there(
    coordinator: Opener, count: int
) -> None:
    """Of two devices. Where both send such updates, the round is noise, and costs what any other does."""

    async def work() -> None:
        async with coordinator() as operator:
            devices = await fleet(operator, await operator.population(), 2)
            experiment = await started(operator, private(noise=1e-3), rounds=1)
            for device, value in zip(devices[:count], WRONG, strict=False):
                await deliver_wrong(device, value)
            for device in devices[count:]:
                task = await device.task()
                assert (await device.upload(task, update(task, 1e-2, weight=1))).status_code == 200
            view = await operator.finished(experiment)
            (row,) = await operator.rounds(experiment)
            assert (row["state"], row["accepted"], row["failed"]) == ("committed", 2, 0)
            assert [type(entry.event) for entry in await entries(operator)] == [Limit, Reserve, Spend]
            found = (await budget(operator))["experiments"][0]
            assert found["epsilon_spent"] == pytest.approx(found["limit"], rel=1e-6)
            mean = await weights(operator, view["latest"])
            assert 0 < np.abs(mean - (2 - count) * 1e-2 / 2).max() < 5e-3
            told = await published(operator, experiment)
            assert "update.refused" not in told and "not_finite" not in told

    run(work())


def test_an_update_without_weight_counts_as_one(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            devices = await fleet(operator, await operator.population(), 2)
            experiment = await started(operator, private(), rounds=1)
            for device in devices:
                task = await device.task()
                assert (await device.upload(task, update(task, weight=0, sums=(0.0, 0.0, 0.0)))).status_code == 200
            await operator.finished(experiment)
            (row,) = await operator.rounds(experiment)
            assert (row["state"], row["accepted"], row["failed"]) == ("committed", 2, 0)

    run(work())


@pytest.mark.parametrize(("phase", "hidden"), [("training", True), ("encoding", True), ("checking", False)])
def test_why_a_device_gave_up_is_published_only_where_rows_have_nothing_to_do_with_it(
    coordinator: Opener, phase: str, hidden: bool
) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            devices = await fleet(operator, await operator.population(), 2)
            said = json.dumps({"phase": phase, "code": "metric_invalid", "detail": "The loss is nan."}).encode()
            with held():
                experiment = await started(operator, private(), rounds=1, deadline_s=1.0)
                for device, task in [(device, await device.task()) for device in devices]:
                    answer = await device.send("POST", f"/v1/device/tasks/{task.id}/abort", said)
                    assert answer.status_code == 204, answer.text
            await operator.finished(experiment)
            (row,) = await operator.rounds(experiment)
            assert row["state"] == "abandoned"
            told = await published(operator, experiment)
            assert ("metric_invalid" in told) is not hidden, "neither as it is said nor in the round's record"
            assert f"devices gave tasks up: {'withheld' if hidden else 'metric_invalid'} (2)" in told

    run(work())
