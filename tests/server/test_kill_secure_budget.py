"""kill -9 where the list of survivors becomes readable: list and payment are true together, whatever comes then."""

import asyncio
import signal
from pathlib import Path

import numpy as np
import pytest
from budget_kit import budget, entries, weights
from kill_kit import supervised, until_all_have_struck
from secure_kit import STEPS, together
from test_secure_budget import LEVELS, begun

from coterie.privacy.ledger.events import Limit, Reserve, Spend

FIRST = ("keys", "shares", "masked")
POINTS = ("survivors.before_commit:1", "survivors.after_commit:1")


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", ["discrete_gaussian", "gaussian"])
@pytest.mark.parametrize("opened", [True, False], ids=["opened", "stopped"])
def test_kill_where_survivors_are_told(point: str, name: str, opened: bool, tmp_path: Path) -> None:
    asyncio.run(assert_paid_once(point, name, opened, tmp_path))


async def assert_paid_once(point: str, name: str, opened: bool, folder: Path) -> None:
    """A round whose clients were told who survived is paid for once, whether its sum is opened or nobody answers."""
    async with supervised(folder, point) as (supervisor, operator):
        experiment, members = await begun(operator, LEVELS[name])
        await together(members, FIRST)
        await until_all_have_struck(supervisor)
        await members[0].told("survivors")
        assert [type(entry.event) for entry in await entries(operator)] == [Limit, Reserve, Spend]
        if opened:
            await together(members, STEPS[len(FIRST) :])
        else:
            await operator.ok("POST", f"/v1/experiments/{experiment}/stop")
        view = await operator.finished(experiment)
        (row,) = await operator.rounds(experiment)
        assert row["state"] == ("committed" if opened else "abandoned")
        assert [type(entry.event) for entry in await entries(operator)] == [Limit, Reserve, Spend]
        (found,) = (await budget(operator))["experiments"]
        assert found["epsilon_spent"] == pytest.approx(found["limit"], rel=1e-6)
        assert (found["rounds_spent"], found["rounds_refunded"]) == (1, 0)
        if opened:
            assert np.abs(await weights(operator, view["latest"]) - 0.3).max() < 0.1
    assert supervisor.statuses == [-signal.SIGKILL, 0]
