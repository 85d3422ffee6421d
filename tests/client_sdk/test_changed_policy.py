"""A device that starts again in the middle of an attempt, under a policy that asks for endorsed devices by now."""

import asyncio
from pathlib import Path

import pytest
from relay import Killed, Member, Relay, terms

from coterie.client_sdk.device.faults import DeviceFaults
from coterie.errors import SecureAggregationRefused
from coterie.privacy.secagg.endorsed import EndorsementRule
from coterie.protocol.signing import SigningKey

CLIENTS = 4
RULE = EndorsementRule(frozenset({SigningKey.from_seed(b"i" * 32).public}), 3)


def kill() -> None:
    raise Killed


@pytest.mark.parametrize("point", ["keys_sent", "shares_sent", "masked_sent", "agreement_sent"])
def test_the_policy_of_now_holds_for_an_attempt_that_began_before(tmp_path: Path, point: str) -> None:
    async def work() -> None:
        relay = Relay(terms(CLIENTS, "consistent"), CLIENTS)
        members = [Member(tmp_path / str(number), relay, number + 1) for number in range(CLIENTS)]
        others = [asyncio.create_task(member.work()) for member in members[1:]]
        with pytest.raises(Killed):
            await members[0].work(DeviceFaults(point, 1, kill))
        members[0].restart()
        courier = members[0].courier()
        courier.endorsed = RULE
        with pytest.raises(SecureAggregationRefused) as refused:
            await courier.carry(members[0].task)
        assert refused.value.reason == "secagg_identities"
        assert "reveal" not in {event.get("message") for event in members[0].events}
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(work())
