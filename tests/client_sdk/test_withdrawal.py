"""Leaving a population: nothing more is done here, the coordinator lets go, and the record stays."""

import asyncio
from pathlib import Path

import pytest
from sdk_kit import Lab, counting, experiment, run

from coterie.client_sdk.device.record import read_record
from coterie.client_sdk.device.withdrawal import stop_here, tell
from coterie.errors import ConfigurationError, Unreachable
from coterie.protocol.rounds import RoundPolicy


def test_who_leaves_in_the_middle_of_a_task_frees_its_place_and_keeps_only_the_record(tmp_path: Path) -> None:
    folder = tmp_path / "leaver"

    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=50, cohort=1, evaluate_every=0)
        view = await place.submit(experiment("leave", rounds=policy, algorithm=counting()))
        agent = await place.agent("leave", "leaver")
        assert (await agent.run(rounds=1)).counted == 1
        working = asyncio.create_task(agent.run())
        while agent.store.in_flight() is None:
            await asyncio.sleep(0)
        agent.stop_training()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        assert agent.store.in_flight() is not None and agent.store.client_state(view.id) != {}
        with pytest.raises(ConfigurationError, match="Another client uses the folder"):
            stop_here(folder)
        await agent.close()
        place.agents.remove(agent)
        left = stop_here(folder)
        assert not [path for name in ("updates", "states", "cache") for path in (folder / name).iterdir()]
        assert {path.name for path in left.remaining_files} == {"device.db", "device.key"}
        first, *_, last = read_record(folder).history
        assert (first.state, last.state, last.detail.split(":")[0]) == ("counted", "failed", "withdrawn")
        gone = await place.agent("leave", "leaver")
        with pytest.raises(ConfigurationError, match="has left population 'leave'") as caught:
            await gone.run()
        assert caught.value.reason == "withdrawn"
        await gone.close()
        place.agents.remove(gone)
        with pytest.raises(Unreachable):  # nothing listens at the membership's address but this transport
            await tell(left)
        for _ in range(2):  # a second time is harmless
            await tell(stop_here(folder), transport=place.transport)
        (device,) = await place.control.devices("leave")
        assert (device.state, device.failure) == ("withdrawn", "device_withdrawn")
        # Its place is free at once, long before its lease runs out.
        other = await place.agent("leave", "other")
        assert (await other.run(rounds=1)).counted == 1

    run(work, tmp_path)


def test_a_folder_without_a_member_has_nothing_to_leave(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        stop_here(tmp_path / "none")
    assert caught.value.reason == "store_unknown" and not (tmp_path / "none").exists()
