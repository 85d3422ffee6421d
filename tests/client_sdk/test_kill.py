"""A device killed at every point of its work resumes, contributes once, and its client state is right.

Each case kills a real client process with SIGKILL at one row of `coterie.client_sdk.device.faults.POINTS`, starts it
again on the same folder, and lets it finish a two-round experiment of which it is the only client, on a real
coordinator.
"""

import asyncio
import json
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from sdk_kit import RESEARCHER, Coordinator, clean_environment, counting, experiment, rows, save_rows

from coterie.client_sdk.control.control import Control
from coterie.client_sdk.device.faults import POINTS, VARIABLE, DeviceFaults
from coterie.errors import ConfigurationError, InternalError
from tests.patience import patience

ROUNDS = 2
SCRIPT = Path(__file__).parent / "client_process.py"
# The first check-in has nothing to settle, so the interesting settlement is the second one; the others strike at once.
NTH = {"settled": 2, "downloading": 2, "training": 3}


def client(
    coordinator: Coordinator, token: str, folder: Path, data: Path, fault: str | None
) -> subprocess.CompletedProcess[str]:
    environment = clean_environment(**({VARIABLE: fault} if fault else {}))
    command = [sys.executable, str(SCRIPT), coordinator.url, token, str(folder), str(data), str(ROUNDS)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience(60))


@dataclass(frozen=True)
class Outcome:
    """What came of one case: how both processes ended, and what each side remembers."""

    killed: subprocess.CompletedProcess[str]
    resumed: subprocess.CompletedProcess[str]
    rounds: list[tuple[str, int]]
    devices: int


def strike(coordinator: Coordinator, folder: Path, point: str) -> Outcome:
    save_rows(folder / "rows.npz", rows())
    name = f"kill-{point.replace('_', '-')}"
    with Control(coordinator.url, token=coordinator.token) as control:
        run = control.submit(experiment(name, algorithm=counting()), key=RESEARCHER)
        token = control.enrolment_token(name).token
        fault = f"{point}:{NTH.get(point, 1)}"
        killed = client(coordinator, token, folder / "device", folder / "rows.npz", fault)
        resumed = client(coordinator, token, folder / "device", folder / "rows.npz", None)
        history = run.wait(patience(120))
        return Outcome(killed, resumed, [(r.state, r.accepted) for r in history.rounds], len(control.devices(name)))


@pytest.fixture(scope="module")
def outcomes(coordinator: Coordinator, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[Outcome]]:
    """Every case, several at once: they share the coordinator and nothing else."""
    with ThreadPoolExecutor(4) as pool:
        return {point: pool.submit(strike, coordinator, tmp_path_factory.mktemp(point), point) for point in POINTS}


@pytest.mark.parametrize("point", POINTS)
def test_a_client_killed_there_resumes_and_contributes_once(outcomes: dict[str, Future[Outcome]], point: str) -> None:
    outcome = outcomes[point].result()
    assert outcome.killed.returncode == -signal.SIGKILL, outcome.killed.stdout + outcome.killed.stderr
    assert outcome.resumed.returncode == 0, outcome.resumed.stderr
    # The coordinator saw one device and one update per round.
    assert outcome.rounds == [("committed", 1)] * ROUNDS
    assert outcome.devices == 1
    # The device remembers one counted task per round and nothing else.
    remembered = json.loads(outcome.resumed.stdout)
    assert [(entry["round"], entry["state"]) for entry in remembered["history"]] == [(1, "counted"), (2, "counted")]
    # The rule's client state is the number of updates that counted: no more (twice) and no less (lost).
    assert list(remembered["states"].values()) == [float(ROUNDS)]


def test_the_killed_clients_update_is_the_one_it_would_have_sent(coordinator: Coordinator, tmp_path: Path) -> None:
    """The bytes stored before the kill are the bytes uploaded after it."""
    save_rows(tmp_path / "rows.npz", rows())
    with Control(coordinator.url, token=coordinator.token) as control:
        control.submit(experiment("same-bytes", algorithm=counting()), key=RESEARCHER)
        token = control.enrolment_token("same-bytes").token
        client(coordinator, token, tmp_path / "device", tmp_path / "rows.npz", "uploading:1")
        (stored,) = (tmp_path / "device" / "updates").iterdir()
        size = stored.stat().st_size
        resumed = client(coordinator, token, tmp_path / "device", tmp_path / "rows.npz", None)
        events = control.portal.call(_accepted(control, "same-bytes"))
    assert json.loads(resumed.stdout)["history"][0]["bytes_up"] == size
    assert events[0]["size"] == size


async def _accepted(control: Control, name: str) -> list[dict[str, object]]:
    view = await control.client.experiment(name)
    found: list[dict[str, object]] = []
    async with asyncio.timeout(patience(60)):
        async for event in control.client.events(view.id):
            if event.type == "update.accepted":
                found.append(event.data)
    return found


def test_a_fault_that_is_none_is_refused() -> None:
    for text in ("nowhere:1", "trained:0", "trained:x"):
        with pytest.raises(ConfigurationError):
            DeviceFaults.from_environment({VARIABLE: text})
    with pytest.raises(InternalError):
        DeviceFaults().reach("nowhere")


def test_a_fault_strikes_at_the_nth_time_only() -> None:
    struck: list[int] = []
    faults = DeviceFaults("trained", 2, lambda: struck.append(faults.reached["trained"]))
    for _ in range(4):
        faults.reach("trained")
        faults.reach("stored")
    assert struck == [2]
