"""A device's folder set back into an attempt of secure aggregation, its record of releases elsewhere."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import relay as relay_module
from relay import Killed, Relay, terms
from test_secure_courier import gather, kill
from test_spending import ANY, UPLOAD, release

from coterie.client_sdk.device.faults import DeviceFaults
from coterie.client_sdk.device.secure import SecureCourier
from coterie.client_sdk.device.spending import PrivacyLedger
from coterie.client_sdk.device.store import DeviceStore
from coterie.errors import PolicyRefused
from coterie.protocol.device import Task

CLIENTS = 4


def test_a_vector_goes_into_one_sum_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator opens the same attempt again, with others in it: two sums would hold the same noise."""
    ledger = PrivacyLedger(tmp_path / "elsewhere.db")

    async def work() -> None:
        first = Relay(terms(CLIENTS, "consistent"), CLIENTS)
        members = gather(tmp_path / "first", first)
        victim = members[0]

        def courier(**given: Any) -> SecureCourier:
            async def before(_: Task) -> None:
                in_flight = victim.store.in_flight()
                assert in_flight is not None
                ledger.send(in_flight.release, in_flight.sha256)

            made = SecureCourier(**given)
            if made.device == victim.id:
                made.before_masked = before
            return made

        monkeypatch.setattr(relay_module, "SecureCourier", courier)
        in_flight = victim.store.in_flight()
        assert in_flight is not None
        ledger.charge(release(in_flight.release, UPLOAD, epsilon=9.0), ANY)
        others = [asyncio.create_task(member.work()) for member in members[1:]]
        with pytest.raises(Killed):
            await victim.work(DeviceFaults("keys_ready", 1, kill))
        victim.store.close()
        shutil.copytree(victim.folder, tmp_path / "backup")
        victim.store = DeviceStore(victim.folder)
        assert (await victim.work()).state == "summed"
        assert {ended.state for ended in await asyncio.gather(*others)} == {"summed"}
        victim.store.close()
        shutil.rmtree(victim.folder)
        shutil.copytree(tmp_path / "backup", victim.folder)
        victim.store = DeviceStore(victim.folder)
        second = Relay(first.terms, CLIENTS)
        fresh = gather(tmp_path / "second", second)[1:]
        together = (victim, *fresh)
        second.tasks = {member.id: member.task for member in together}
        second.identities = {member.id: member.store.key.public for member in together}
        victim.relay = second
        others = [asyncio.create_task(member.work()) for member in fresh]
        with pytest.raises(PolicyRefused) as caught:
            await victim.work()
        assert caught.value.reason == "privacy_recorded"
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert ledger.total(1e-5).releases == 1

    asyncio.run(work())
