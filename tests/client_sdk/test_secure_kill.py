"""Devices killed with SIGKILL at every point of one and the same attempt come back, and the sum has all of them."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Queue
from typing import Any

from sdk_kit import RESEARCHER, Coordinator, clean_environment, coordinator_process, counting, experiment

from coterie.client_sdk.control.control import Control
from coterie.client_sdk.device.faults import SECURE_POINTS
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secure_aggregation import SecureAggregation
from tests.patience import patience
from tests.ports import steady_port

SCRIPT = Path(__file__).parent / "secure_fleet.py"
# Points that every task has, at which one under secure aggregation has something else on the disk.
POINTS = (*SECURE_POINTS, "written", "uploading", "uploaded")


def killed_and_back(coordinator: Coordinator, token: str, folder: Path, points: Sequence[str]) -> dict[str, Any]:
    """Devices of which each is killed at its point and started again; point → how its lives ended and its history."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), coordinator.url, token, *(f"{folder / point}={point}" for point in points)],
        env=clean_environment(PYTHONPATH=os.pathsep.join((str(SCRIPT.parent), str(SCRIPT.parents[2])))),
        capture_output=True,
        text=True,
        timeout=patience(240),
    )
    assert done.returncode == 0, done.stderr
    devices: dict[str, Any] = json.loads(done.stdout)
    for point, device in devices.items():
        assert device["codes"] == [-signal.SIGKILL, 0], (point, device, done.stderr)
    return devices


def test_devices_killed_at_every_point_of_an_attempt_are_all_in_its_sum(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    policy = RoundPolicy(
        rounds=1,
        cohort=len(POINTS),
        min_updates=len(POINTS),
        deadline_s=patience(150.0),
        lease_s=patience(100.0),
        evaluate_every=0,
    )
    secure = SecureAggregation(mode="consistent", phase_s=100.0)
    wanted = experiment("killed-in-secret", rounds=policy, secure_aggregation=secure)
    with Control(coordinator.url, token=coordinator.token) as control:
        run = control.submit(wanted, key=RESEARCHER)
        token = control.enrolment_token("killed-in-secret").token
        devices = killed_and_back(coordinator, token, tmp_path, POINTS)
        history = run.wait(patience(30))
    assert [(record.state, record.accepted) for record in history.rounds] == [("committed", len(POINTS))]
    for point, device in devices.items():
        (entry,) = device["history"]
        assert entry["state"] == "counted", (point, entry)
        assert (entry["clients"], entry["survivors"]) == (len(POINTS), len(POINTS)), (point, entry)
        assert entry["sent"] == ["keys", "shares", "masked", "agreement", "reveal"], (point, entry)


# How each life of the coordinator ends: in the middle of a phase, at a vector, at a change of phase, and in peace.
LIVES = ("message.before_commit:4", "masked.after_commit:2", "attempt.after_commit:2", "")
TOGETHER = ("keys_sent", "shares_ready", "shares_sent", "masked_ready", "uploaded", "reveal_ready")


def test_devices_and_their_coordinator_killed_in_one_attempt_are_all_in_its_sum(tmp_path: Path) -> None:
    port = str(steady_port())
    begun: Queue[Coordinator] = Queue()
    over = threading.Event()
    ends: list[int] = []

    def live() -> None:
        for fault in LIVES:
            with coordinator_process(tmp_path, fault=fault, port=port) as here:
                begun.put(here)
                if fault:
                    ends.append(here.process.wait())
                else:
                    over.wait(patience(240))

    lives = threading.Thread(target=live, daemon=True)
    lives.start()
    count = len(TOGETHER)
    long, lease = patience(150.0), patience(100.0)
    policy = RoundPolicy(rounds=1, cohort=count, min_updates=count, deadline_s=long, lease_s=lease, evaluate_every=0)
    wanted = experiment("killed-together", rounds=policy, algorithm=counting(), secure_aggregation=SecureAggregation())
    try:
        first = begun.get(timeout=patience(60))
        with Control(first.url, token=first.token) as control:
            run = control.submit(wanted, key=RESEARCHER)
            token = control.enrolment_token("killed-together").token
            devices = killed_and_back(first, token, tmp_path, TOGETHER)
            history = run.wait(patience(60))
    finally:
        over.set()
        lives.join(patience(60))
    assert ends == [-signal.SIGKILL] * (len(LIVES) - 1)
    assert [(record.state, record.accepted) for record in history.rounds] == [("committed", count)]
    for point, device in devices.items():
        (entry,) = device["history"]
        assert (entry["state"], entry["clients"], entry["survivors"]) == ("counted", count, count), (point, entry)
