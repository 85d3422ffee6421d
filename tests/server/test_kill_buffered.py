"""kill -9 in buffered rounds: what was acknowledged, also between two rounds, is counted exactly once.

Three devices hold tasks of the first version; the third answers when that is long committed. The coordinator dies at a
point, and the devices carry on as real ones do. Whichever round counted an update and however much it lagged by then,
every update moves the weights by its value times its share, and its device is told.
"""

import asyncio
import signal
from pathlib import Path

import numpy as np
import pytest
from kill_kit import supervised, until_all_have_struck, until_no_update_is_left
from server_kit import Device, Operator, fleet, update

from coterie.protocol.device import Task
from coterie.protocol.tensors import decode_tensors
from tests.patience import patience

# A coordinator dies at one point after another, in the order of the rounds; each process counts anew, so that from the
# second acceptance or commit on a strike lies between two rounds.
CHAINS = {
    "before": (
        "lease.before_commit:2", "accept.before_commit:1", "aggregated.before_commit:1", "commit.before_commit:1",
        "blobs.before_delete:1", "accept.before_commit:1", "commit.before_commit:1", "cleanup.before_commit:1",
    ),
    "after": (
        "lease.after_commit:2", "accept.after_commit:1", "commit.after_commit:1", "blobs.after_delete:1",
        "update_blob.after_sync:1", "aggregated.after_commit:1",
    ),
    "late": ("accept.before_commit:2", "aggregated.after_commit:2"),
    "later": ("accept.after_commit:2", "lease.after_commit:1"),
    "between two commits": ("commit.before_commit:2",),
}  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS)
def test_kills_between_buffered_rounds(chain: str, tmp_path: Path) -> None:
    asyncio.run(assert_nothing_is_lost(CHAINS[chain], tmp_path))


async def assert_nothing_is_lost(strikes: tuple[str, ...], folder: Path) -> None:
    """One experiment of three rounds, each of one update or of as many as waited."""
    async with supervised(folder, *strikes) as (supervisor, operator):
        token = await operator.population()
        experiment = await operator.experiment(
            rounds=3, cohort=1, concurrency=3, mode="buffered", staleness_cap=5, staleness_exponent=0.0
        )
        devices = await fleet(operator, token, 3)
        held = [(device, await device.task()) for device in devices]
        sent = [(*pair, await delivered(*pair, value=value)) for pair, value in zip(held, (1.0, 2.0, 4.0), strict=True)]
        # Two updates that waited together make one round, so that somebody has to answer once more.
        async with asyncio.timeout(patience(60)):
            while (await operator.state(experiment))["state"] == "running":
                for device in devices:
                    found = (await device.check_in())["task"]
                    if found is not None:
                        task = Task.model_validate(found)
                        sent.append((device, task, await delivered(device, task, value=0.0)))
        await until_all_have_struck(supervisor)
        await check(operator, experiment, sent)
        await until_no_update_is_left(folder)
    assert supervisor.statuses == [*([-signal.SIGKILL] * len(strikes)), 0]


async def delivered(device: Device, task: Task, *, value: float) -> float | None:
    """Upload until it is acknowledged: the value, or None when the experiment was over by then."""
    answer = await device.upload(task, update(task, value))
    assert answer.status_code == 200 or answer.json()["code"] == "round_closed", answer.text
    return value if answer.status_code == 200 else None


async def check(operator: Operator, experiment: str, sent: list[tuple[Device, Task, float | None]]) -> None:
    """Every acknowledged update is in exactly one round, in the order of the acknowledgements; momentum 0.5 says what
    the versions must be.
    """
    rounds = await operator.rounds(experiment)
    assert [entry["state"] for entry in rounds] == ["committed"] * 3
    told = {task.id: (await device.check_in([task.id]))["settled"].get(task.id) for device, task, _ in sent}
    acknowledged = [(task, value) for _, task, value in sent if value is not None]
    counted = [value for task, value in acknowledged if told[task.id] == "counted"]
    assert len(counted) == sum(entry["accepted"] for entry in rounds)
    assert counted[:3] == [1.0, 2.0, 4.0]
    velocity = expected = 0.0
    for entry in rounds:
        these, counted = counted[: entry["accepted"]], counted[entry["accepted"] :]
        velocity = 0.5 * velocity + sum(these) / len(these)
        expected += velocity
        assert np.isclose(await number(operator, entry["model"]), expected)


async def number(operator: Operator, sha256: str) -> float:
    """The number that all weights of a version are."""
    tensors = decode_tensors((await operator.http.get(f"/v1/blobs/{sha256}")).content)
    (value,) = set(np.concatenate([tensor.reshape(-1) for tensor in tensors.values()]).tolist())
    return value
