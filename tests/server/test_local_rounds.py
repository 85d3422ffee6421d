"""Rounds of devices that noise their own updates: what the coordinator may ask of one device."""

import asyncio

from server_kit import Opener, fleet, once

from coterie.protocol.privacy import LocalLevel

KNOWS = b'{"capabilities":{"trainers":["plan","external"],"secure":["local_noise/1"],"features":["evaluate/1"]}}'


def test_a_device_noises_one_upload_in_a_round_whatever_became_of_it(coordinator: Opener) -> None:
    """A second one would be a second release of the same rows, and the round has paid for one."""
    level = LocalLevel(mechanism="gaussian", epsilon=2.0, delta=1e-6)

    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            first, second = await fleet(operator, token, 2)
            request = await operator.request(rounds=2, cohort=2, weight_cap=1)
            for privacy, again in ((None, True), (level, False)):
                body = request.model_copy(update={"privacy": privacy}).model_dump(mode="json")
                made = await operator.ok("POST", "/v1/experiments", json=body, headers=once())
                task = (await first.send("POST", "/v1/device/check-in", KNOWS)).json()["task"]
                gone = await first.send(
                    "POST", f"/v1/device/tasks/{task['id']}/abort", b'{"phase":"training","code":"connection_lost"}'
                )
                assert gone.status_code == 204
                other = (await first.send("POST", "/v1/device/check-in", KNOWS)).json()["task"]
                assert (other is not None) == again
                assert (await second.send("POST", "/v1/device/check-in", KNOWS)).json()["task"] is not None
                await operator.ok("POST", f"/v1/experiments/{made['id']}/stop")

    asyncio.run(work())
