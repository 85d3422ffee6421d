"""kill -9 at every point of an attempt at secure aggregation: nothing acknowledged is lost or counted twice, no vector
is ever half in a sum, and the sum is that of the clients it says.

The points are not sampled: every row of `SECURE_POINTS` is struck, and those of the sum's way into a version. A real
coordinator process serves over a socket, six honest clients work with it over HTTP, SIGKILL strikes, a second process
takes over the folder, and the clients repeat what was not answered.
"""

import asyncio
import signal
from pathlib import Path

import numpy as np
import pytest
from kill_kit import Zygote, supervised, until_dead_once, until_no_update_is_left
from secure_kit import STEPS, leased, mean, secure, together
from server_kit import Operator, fleet

from coterie.protocol.tensors import decode_tensors
from coterie.server.faults import SECURE_POINTS

# Each point with the time at which it strikes: the first message of a phase and the last, every change of phase.
CHANGES = ("began", "masked", "agreement", "reveal", "ready")
STRIKES = (
    *(f"{point}:1" for point in SECURE_POINTS),
    *(f"attempt.{side}_commit:{nth}" for side in ("before", "after") for nth in range(2, len(CHANGES) + 1)),
    "trained.before_commit:6", "trained.after_commit:6", "message.before_commit:6", "message.after_commit:12",
    "masked.before_commit:6", "masked.after_commit:6", "masked_blob.after_sync:6",
    "result_blob.before_sync:1", "result_blob.after_sync:1", "aggregated.before_commit:1", "aggregated.after_commit:1",
    "commit.before_commit:1", "updates.before_delete:1", "updates.after_delete:1",
    "cleanup.before_commit:1", "cleanup.after_commit:1",
)  # fmt: skip


@pytest.mark.parametrize("strike", STRIKES)
def test_kill_in_an_attempt(strike: str, zygote: Zygote, tmp_path: Path) -> None:
    asyncio.run(live(strike, zygote, tmp_path))


async def live(strike: str, zygote: Zygote, folder: Path) -> None:
    """One secure round in the mode with every phase."""
    async with supervised(zygote, folder, strike) as (supervisor, operator):
        token = await operator.population()
        experiment = await operator.experiment(
            secure=secure(mode="consistent"), rounds=1, cohort=6, min_updates=5, lease_s=60.0, deadline_s=120.0
        )
        devices = await fleet(operator, token, 6)
        members = await leased(devices, (1.0, 2.0, 0.5, -1.0, 3.0, 2.5), (10, 20, 30, 10, 5, 40))
        await together(members, STEPS)
        await operator.finished(experiment)
        await until_dead_once(supervisor)
        (entry,) = await operator.rounds(experiment)
        assert (entry["state"], entry["cause"], entry["accepted"]) == ("committed", None, 6)
        assert np.allclose(await number(operator, entry["model"]), mean(members), atol=2e-3)
        for member in members:
            assert (await member.told("outcome")).state == "summed"
            settled = (await member.device.check_in([member.task.id]))["settled"]
            assert settled == {member.task.id: "counted"}
        await until_no_update_is_left(folder)
    assert supervisor.statuses == [-signal.SIGKILL, 0]


async def number(operator: Operator, sha256: str) -> list[float]:
    """The numbers of a version."""
    tensors = decode_tensors((await operator.http.get(f"/v1/blobs/{sha256}")).content)
    return np.concatenate([tensor.reshape(-1) for tensor in tensors.values()]).tolist()
