"""What the record of a private round says of bytes: the same, whatever devices sent and however it came."""

from typing import Any

import pytest
from budget_kit import private, run, started
from secure_kit import events_of
from server_kit import Device, Opener, Operator, fleet, planted, update

from coterie.protocol.device import Task

NOISED = {"model", "sha256", "previous", "latest"}
"""What names a noised version."""
ELSEWISE = {"seconds", "task", "device", "experiment", "id", "at", "bytes_down"}
"""When it was and who took part; versions go down compressed, so those bytes follow from noised weights."""


async def deliver_at_once(device: Device, task: Task, value: float) -> None:
    """The whole body in one request."""
    answer = await device.upload(task, update(task, value, weight=1))
    assert answer.status_code == 200, answer.text


async def deliver_in_pieces(device: Device, task: Task, value: float) -> None:
    """The first half twice, as after a connection that broke off."""
    data = update(task, value, weight=1)
    half = len(data) // 2
    for offset, part, status in ((0, data[:half], 204), (0, data[:half], 204), (half, data[half:], 200)):
        answer = await device.upload(task, data, offset=offset, part=part)
        assert answer.status_code == status, answer.text


async def deliver_nothing_usable(device: Device, task: Task, value: float) -> None:
    """Numbers that are not finite, which count as zeros."""
    answer = await device.upload(task, planted(task, value, weight=1))
    assert answer.status_code == 200, answer.text


async def told(operator: Operator, deliver: Any, value: float) -> list[Any]:
    """All that is published of an experiment of one round but for its noised model, when and by whom."""
    devices = await fleet(operator, await operator.population(), 2)
    experiment = await started(operator, private(), rounds=1)
    for device in devices:
        await deliver(device, await device.task(), value)
    await operator.finished(experiment)
    (row,) = await operator.rounds(experiment)
    assert row["bytes_up"] > 0
    found = [{"type": "row", **row}, *await events_of(operator, experiment)]
    return [{name: value for name, value in one.items() if name not in NOISED | ELSEWISE} for one in found]


@pytest.mark.parametrize("deliver", [deliver_at_once, deliver_in_pieces, deliver_nothing_usable])
def test_a_private_round_is_told_alike_whatever_devices_sent(coordinator: Opener, deliver: Any) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            usual = await told(operator, deliver_at_once, 0.0)
            other = await told(operator, deliver, float("nan") if deliver is deliver_nothing_usable else 1e6)
            assert usual == other

    run(work())
