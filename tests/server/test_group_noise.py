"""A robust rule over groups of which each is noised in full, over HTTP."""

import asyncio

import numpy as np
from secure_kit import Member, leased, secure, together
from server_kit import Opener, fleet, once

from coterie.protocol.privacy import UserLevel
from coterie.protocol.tensors import decode_tensors


def test_the_rule_works_on_noised_means_of_groups_and_the_round_pays_once(coordinator: Opener) -> None:
    privacy = UserLevel(clip=10.0, delta=1e-6, noise_multiplier=1e-3)

    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            request = await operator.request(
                secure=secure(groups=3), reducer="median", lr=1.0, rounds=1, cohort=15, min_updates=15, weight_cap=1
            )
            body = request.model_copy(update={"privacy": privacy}).model_dump(mode="json")
            made = await operator.ok("POST", "/v1/experiments", json=body, headers=once())
            values = tuple(float(number % 5) / 5 for number in range(15))
            members = await leased(await fleet(operator, token, 15), values, (1,) * 15)
            groups: dict[str, list[Member]] = {}
            for member in members:
                groups.setdefault(member.terms.attempt, []).append(member)
            await together(members)
            await operator.finished(made["id"])
            (entry,) = await operator.rounds(made["id"])
            tensors = decode_tensors((await operator.http.get(f"/v1/blobs/{entry['model']}")).content)
            moved = np.concatenate([tensors["w"], tensors["b"]])
            means = [sum(member.value for member in group) / 5 for group in groups.values()]
            # Noise of 0.01 on sums of five, and the grid of a norm of ten.
            assert np.allclose(moved, float(np.median(means)), atol=0.02)
            assert len(set(np.round(moved, 9).tolist())) > 1, "there is noise, and not one number for all"
            page = await operator.ok("GET", "/v1/populations/people/budget/entries")
            kinds = [item["event"]["kind"] for item in page["items"]]
            assert kinds == ["limit", "reserve", "spend"]

    asyncio.run(work())
