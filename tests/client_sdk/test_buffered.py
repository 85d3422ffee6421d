"""Buffered rounds with real devices over real HTTP: the slow one holds nobody up, and what it did still counts."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sdk_kit import RESEARCHER, Coordinator, experiment, infer, rows

from coterie.aggregation.horizontal import FedBuff
from coterie.client_sdk import Control, Device
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.protocol.rounds import RoundPolicy
from tests.patience import patience


class Watch:
    """Hears all devices: one keeps its first task until the others have had ten updates counted."""

    def __init__(self) -> None:
        self.first: threading.Event = threading.Event()
        self.outcomes: list[str] = []
        self._counted = threading.Condition()
        self._count = 0

    def quick(self, event: Mapping[str, Any]) -> None:
        """Listen to a device that does not wait."""
        if event["event"] == "settled":
            with self._counted:
                self._count += 1
                self._counted.notify_all()

    def slow(self, event: Mapping[str, Any]) -> None:
        """Listen to the one that does."""
        if event["event"] == "task" and not self.outcomes:
            with self._counted:
                wanted = self._count + 10
                self._counted.wait_for(lambda: self._count >= wanted, timeout=patience(60))
        if event["event"] == "settled":
            self.outcomes.append(event["outcome"])
            self.first.set()


def test_a_slow_device_holds_nobody_up_and_still_counts(coordinator: Coordinator, tmp_path: Path) -> None:
    wanted = experiment(
        "buffered",
        algorithm=FedBuff(),
        epochs=2,
        rounds=RoundPolicy(
            rounds=2000, cohort=2, mode="buffered", concurrency=4, staleness_cap=100, evaluate_every=0, min_examples=20
        ),
        infer_batch=60,
    )
    watch = Watch()
    with Control(coordinator.url, token=coordinator.token) as control:
        run = control.submit(wanted, key=RESEARCHER)
        token = control.enrolment_token("buffered", uses=4).token
        # Only devices that say what they have are eligible here.
        devices = [
            Device(
                coordinator.url,
                data=rows(40, number),
                folder=tmp_path / f"d{number}",
                token=token,
                on_event=watch.quick if number else watch.slow,
                policy=DevicePolicy(reveal_data=True),
            )
            for number in range(4)
        ]
        threads = [threading.Thread(target=device.run) for device in devices]
        for thread in threads:
            thread.start()
        assert watch.first.wait(patience(100))
        run.stop()
        history = run.wait(patience(60))
        for device in devices:
            device.stop()
        for thread in threads:
            thread.join(patience(60))
        path = run.download(tmp_path / "infer.onnx", version="latest")
        states = [[(entry.state, entry.round) for entry in device.history()] for device in devices]
        for device in devices:
            device.close()
    assert {record.state for record in history.rounds[:-1]} == {"committed"}
    # It answered for a version that the others had replaced more than once by then, and it counted.
    assert watch.outcomes[0] == "counted"
    first = next(round for state, round in states[0] if state == "counted")
    others = sorted(round for mine in states[1:] for state, round in mine if state == "counted")
    assert first + 2 <= others[-1]
    test = rows(60, 99)
    assert np.mean(infer(path, {"batch/x": test["x"]}).argmax(1) == test["y"]) > 0.8
