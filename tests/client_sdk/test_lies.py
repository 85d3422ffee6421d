"""A coordinator that lies in its tasks, against real devices: each lie is refused by its code, and nothing leaves."""

from pathlib import Path

from liar import devices, lying_coordinator, refusals
from sdk_kit import experiment

from coterie.protocol.device import Task


def test_a_lying_coordinator_can_be_played(tmp_path: Path) -> None:
    def lie(task: Task) -> Task:
        return task.model_copy(update={"plan": task.plan.model_copy(update={"signer": "0" * 64})})

    with lying_coordinator(tmp_path, task=lie) as lying:
        _, token = lying.submit(experiment("own"))
        with devices(lying, token, tmp_path) as (device,):
            assert refusals(device.events()) == ["signer_refused"]
        lying.liar.task = lambda task: task
        with devices(lying, token, tmp_path) as (device,):
            events = device.events()
    assert refusals(events) == []
    assert any(event["event"] == "uploaded" for event in events)
