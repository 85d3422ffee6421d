"""A clock that is set back while a round runs: its deadline begins anew, and is not hours away."""

import asyncio
import time

import pytest
from server_kit import Opener, fleet

from coterie.server import clock, driver
from coterie.server.device import assignment
from coterie.server.rounds import set_back, transitions
from tests.held_clock import held
from tests.patience import patience

HOURS_MS = 2 * 3600 * 1000


def test_a_deadline_stays_seconds_away_when_the_clock_goes_back_by_hours(
    coordinator: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            (device,) = await fleet(operator, token, 1)
            with held():
                experiment = await operator.experiment(rounds=1, cohort=2, deadline_s=2.0, lease_s=2.0)
                await device.task()
            behind = clock.now_ms
            for module in (driver, set_back, assignment, transitions):
                monkeypatch.setattr(module, "now_ms", lambda: behind() - HOURS_MS)
            begun, limit = time.monotonic(), patience(20)
            record = await operator.until_round(experiment, 1, "abandoned", seconds=30)
            assert time.monotonic() - begun < limit
            assert record["cause"]

    asyncio.run(check())
