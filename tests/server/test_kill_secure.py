"""kill -9 at every point of an attempt at secure aggregation: nothing acknowledged is lost or counted twice, no vector
is ever half in a sum, and the sum is that of the clients it says.

The points are not sampled: every row of `SECURE_POINTS` is struck, and those of the sum's way into a version. A real
coordinator process serves over a socket, six honest clients work with it over HTTP, SIGKILL strikes, another process
takes over the folder, and the clients repeat what was not answered.
"""

import asyncio
import signal
from pathlib import Path

import numpy as np
import pytest
from kill_kit import supervised, until_all_have_struck, until_no_update_is_left
from secure_kit import STEPS, leased, mean, secure, together
from server_kit import Operator, fleet

from coterie.protocol.tensors import decode_tensors
from coterie.server.faults import SECURE_POINTS
from tests.patience import patience

# A coordinator lives through a chain of strikes in the order of an attempt: the first message of a phase, every change
# of phase, the last message; then what makes a version of the sum. Each process counts anew, and begins by giving the
# phase of an attempt that is under way its whole time again, which is a change too.
CHAINS = {
    "before the beginning": (
        "trained.before_commit:1", "attempt.before_commit:1", "message.before_commit:1", "attempt.before_commit:1",
        "attempt.before_commit:2", "masked_blob.before_sync:1", "masked.before_commit:1",
    ),
    "after the beginning": (
        "trained.after_commit:1", "attempt.after_commit:1", "message.after_commit:1", "attempt.after_commit:1",
        "attempt.after_commit:2", "masked_blob.after_sync:1", "masked.after_commit:1",
    ),
    "before the end": (
        "survivors.before_commit:1", "message.before_commit:1", "attempt.before_commit:2", "message.before_commit:1",
        "attempt.before_commit:2", "opened_blob.before_sync:1", "result_blob.before_sync:1",
        "aggregated.before_commit:1", "commit.before_commit:1", "blobs.before_delete:1", "cleanup.before_commit:1",
    ),
    "after the end": (
        "survivors.after_commit:1", "message.after_commit:1", "attempt.after_commit:2", "message.after_commit:1",
        "attempt.after_commit:2", "opened_blob.after_sync:1", "result_blob.after_sync:1",
        "aggregated.after_commit:1", "blobs.after_delete:1", "cleanup.after_commit:1",
    ),
    # A job taken; a sum opened; what makes a version of it taken.
    "in the jobs": ("job.before_commit:1", "job.after_commit:2", "job.after_commit:1"),
    "before the last": (
        "trained.before_commit:6", "message.before_commit:6", "masked.before_commit:6", "message.before_commit:6",
        "message.before_commit:6",
    ),
    "after the last": (
        "trained.after_commit:6", "message.after_commit:6", "masked_blob.after_sync:6", "message.after_commit:6",
        "message.after_commit:6",
    ),
}  # fmt: skip


def test_every_point_of_an_attempt_is_struck() -> None:
    assert {strike.split(":")[0] for chain in CHAINS.values() for strike in chain} >= set(SECURE_POINTS)


@pytest.mark.parametrize("chain", CHAINS)
def test_kills_in_an_attempt(chain: str, tmp_path: Path) -> None:
    asyncio.run(assert_nothing_is_lost(CHAINS[chain], tmp_path))


async def assert_nothing_is_lost(strikes: tuple[str, ...], folder: Path) -> None:
    """One secure round in the mode with every phase."""
    async with supervised(folder, *strikes) as (supervisor, operator):
        token = await operator.population()
        experiment = await operator.experiment(
            secure=secure(mode="consistent"),
            rounds=1,
            cohort=6,
            min_updates=5,
            lease_s=patience(60.0),
            deadline_s=patience(120.0),
        )
        devices = await fleet(operator, token, 6)
        members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0, 2.5), (10, 20, 30, 10, 5, 40))
        await together(members, STEPS)
        await operator.finished(experiment)
        await until_all_have_struck(supervisor)
        (entry,) = await operator.rounds(experiment)
        assert (entry["state"], entry["cause"], entry["accepted"]) == ("committed", None, 6)
        assert np.allclose(await number(operator, entry["model"]), mean(members), atol=2e-3)
        for member in members:
            assert (await member.told("outcome")).state == "summed"
            settled = (await member.device.check_in([member.task.id]))["settled"]
            assert settled == {member.task.id: "counted"}
        await until_no_update_is_left(folder)
    assert supervisor.statuses == [*([-signal.SIGKILL] * len(strikes)), 0]


async def number(operator: Operator, sha256: str) -> list[float]:
    """The numbers of a version."""
    tensors = decode_tensors((await operator.http.get(f"/v1/blobs/{sha256}")).content)
    return np.concatenate([tensor.reshape(-1) for tensor in tensors.values()]).tolist()
