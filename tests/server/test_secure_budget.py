"""Privacy under secure aggregation: paid before anything is unmasked, given back where nothing ever was."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from os import urandom
from typing import Any

import numpy as np
import pytest
from budget_kit import budget, entries, weights
from secure_kit import STEPS, Member, attempt_of, lapse, secure, together, until_phase
from server_kit import Opener, Operator, fleet, once
from sqlalchemy import update

from coterie.aggregation.plan.manifest import DELTA
from coterie.privacy.ledger.events import Limit, Refund, Reserve, Spend
from coterie.privacy.secagg.encoding import Binding, encode
from coterie.protocol.metrics import METRICS
from coterie.protocol.privacy import UserLevel
from coterie.server.store.tables import ChainRow


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run an asynchronous test."""
    asyncio.run(work)


@dataclass
class Noisy(Member):
    """A member that adds its share of the noise, where its task asks for one."""

    def numbers(self) -> Any:
        """The update in the ring, with noise."""
        plan = self.recipe.manifest
        sums = np.array((1.0, 0.5, 0.75), np.float64)
        return encode(
            self.terms.sections,
            plan.sections_for(self.task.kind),
            {DELTA: np.full(plan.layout.size, self.value, np.float32), METRICS: sums},
            weight=1,
            weight_cap=self.terms.weight_cap,
            binding=Binding(plan.id, self.task.model.sha256),
            entropy=urandom,
            noise=self.terms.noise,
        ).vector


async def begun(operator: Operator, privacy: UserLevel, rounds: int = 1) -> tuple[str, list[Noisy]]:
    """An experiment with secure aggregation and this privacy, and five members with tasks of its first round."""
    token = await operator.population()
    request = await operator.request(rounds=rounds, cohort=5, min_updates=4, weight_cap=1)
    asked = request.model_copy(update={"privacy": privacy, "secure": secure(norm=privacy.clip)})
    made = await operator.ok("POST", "/v1/experiments", json=asked.model_dump(mode="json"), headers=once())
    devices = await fleet(operator, token, 5)
    tasks = [await device.task() for device in devices]
    pairs = zip(devices, tasks, (0.1, 0.2, 0.3, 0.4, 0.5), strict=True)
    return made["id"], [Noisy(device, task, value, 1) for device, task, value in pairs]


LEVELS = {
    "discrete_gaussian": UserLevel(clip=1.0, delta=1e-6, noise_multiplier=0.02, mechanism="discrete_gaussian"),
    "skellam": UserLevel(clip=1.0, delta=1e-6, noise_multiplier=0.05, mechanism="skellam"),
    "gaussian": UserLevel(clip=1.0, delta=1e-6, noise_multiplier=0.02),
}


TOLD = {"discrete_gaussian": "agreement", "skellam": "agreement", "gaussian": "reveal"}
"""The phase in which devices have been told who survived."""


@pytest.mark.parametrize("name", sorted(LEVELS))
def test_a_secure_round_pays_before_it_is_unmasked(coordinator: Opener, name: str) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, members = await begun(operator, LEVELS[name])
            claim = members[0].task.privacy
            assert claim is not None and (claim.unit, claim.mechanism) == ("user", name)
            assert claim.trusts == ("coordinator" if name == "gaussian" else "cohort")
            for step in STEPS:
                kinds = [type(entry.event) for entry in await entries(operator)]
                told = step in ("agreement", "reveal")
                assert kinds == [Limit, Reserve, *([Spend] if told else [])], "paid as the survivors are told"
                await asyncio.gather(*(member.do(step) for member in members))
                if step == "masked":
                    await until_phase(operator, TOLD[name])
            view = await operator.finished(experiment)
            (row,) = await operator.rounds(experiment)
            assert (row["state"], row["training"]) == ("committed", {})
            assert [type(entry.event) for entry in await entries(operator)] == [Limit, Reserve, Spend]
            found = (await budget(operator))["experiments"][0]
            assert found["epsilon_spent"] == pytest.approx(claim.epsilon, rel=1e-6) == found["limit"]
            mean = await weights(operator, view["latest"])
            assert np.abs(mean - 0.3).max() < 0.1

    run(work())


def test_an_attempt_that_never_opens_costs_nothing(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, members = await begun(operator, LEVELS["discrete_gaussian"])
            for step in ("keys", "shares"):
                await asyncio.gather(*(member.do(step) for member in members))
            await until_phase(operator, "masked")
            await lapse(operator)
            await operator.finished(experiment)
            assert [type(entry.event) for entry in await entries(operator)] == [Limit, Reserve, Refund]
            found = (await budget(operator))["experiments"][0]
            assert (found["epsilon"], found["rounds_refunded"]) == (0, 1)

    run(work())


@pytest.mark.parametrize("name", sorted(LEVELS))
def test_a_round_whose_survivors_were_told_is_paid_for_though_it_fails(coordinator: Opener, name: str) -> None:
    """What devices answered may have opened the sum for whoever listened, so nothing is given back."""

    async def work() -> None:
        async with coordinator() as operator:
            experiment, members = await begun(operator, LEVELS[name])
            for step in ("keys", "shares", "masked"):
                await asyncio.gather(*(member.do(step) for member in members))
            await until_phase(operator, TOLD[name])
            assert [type(entry.event) for entry in await entries(operator)] == [Limit, Reserve, Spend]
            await lapse(operator)
            await operator.finished(experiment)
            (row,) = await operator.rounds(experiment)
            assert row["state"] == "abandoned"
            assert [type(entry.event) for entry in await entries(operator)] == [Limit, Reserve, Spend]
            found = (await budget(operator))["experiments"][0]
            assert (found["rounds_spent"], found["rounds_refunded"]) == (1, 0)

    run(work())


def test_a_round_that_is_stopped_after_its_survivors_were_told_is_paid_for(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            experiment, members = await begun(operator, LEVELS["skellam"], rounds=2)
            await together(members, ("keys", "shares", "masked"))
            await members[0].told("survivors")
            await operator.ok("POST", f"/v1/experiments/{experiment}/stop", headers=once())
            await operator.finished(experiment)
            assert [type(entry.event) for entry in await entries(operator)] == [Limit, Reserve, Spend]

    run(work())


def test_survivors_that_cannot_be_paid_for_are_not_told(coordinator: Opener) -> None:
    """Payment and list become true in one transaction: a ledger that does not hold keeps both back."""

    async def work() -> None:
        async with coordinator() as operator:
            _, members = await begun(operator, LEVELS["discrete_gaussian"])
            await together(members, ("keys", "shares"))
            database = operator.app.state.coordinator.storage.database
            async with database.write("policy") as session:
                ledgers = ChainRow.name.startswith("ledger/")
                await session.execute(update(ChainRow).where(ledgers).values(digest="0" * 64))
            await together(members, ("masked",))
            await asyncio.sleep(0.5)
            assert (await attempt_of(operator)).phase == "masked"
            answer = await members[0].device.send("GET", members[0].path("survivors?wait_ms=0"))
            assert answer.status_code == 204

    run(work())
