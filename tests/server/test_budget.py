"""Privacy budgets through the coordinator: rounds reserve, spend and give back; limits end experiments by name; the
noise is the coordinator's own.
"""

import asyncio
import json
import sqlite3
from typing import Any

import numpy as np
import pytest
from budget_kit import DELTA, budget, deliver, entries, policy, private, run, started, submitted, weights
from server_kit import SIZE, Opener, Operator, fleet
from sqlalchemy import select

from coterie.privacy.dp.accounting import total_cost
from coterie.privacy.dp.events import Gaussian
from coterie.privacy.ledger.events import Limit, Refund, Reserve, Spend
from coterie.protocol.privacy import AdaptiveClip
from coterie.server.settings import Settings
from coterie.server.store import experiments
from coterie.server.store.tables import JobRow
from tests.held_clock import held
from tests.patience import patience


def test_rounds_reserve_spend_and_tell_what_was_lost(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            devices = await fleet(operator, token, 2)
            experiment = await started(operator, private(), rounds=2)
            before = await budget(operator)
            assert before["experiments"][0]["rounds_reserved"] == 1
            assert before["experiments"][0]["epsilon_spent"] == 0
            for _ in range(2):
                await deliver(devices)
            view = await operator.finished(experiment)
            assert (view["state"], view["reason"]) == ("finished", "completed")
            events = [entry.event for entry in await entries(operator)]
            assert [type(event) for event in events] == [Limit, Reserve, Spend, Reserve, Spend]
            after = (await budget(operator))["experiments"][0]
            exact = total_cost([Gaussian(2.0, 2)], DELTA).epsilon
            assert after["epsilon_spent"] == pytest.approx(exact, rel=1e-6) == after["limit"]
            assert (after["rounds_spent"], after["rounds_reserved"], after["delta"]) == (2, 0, DELTA)
            rounds = await operator.rounds(experiment)
            told = [(row["epsilon"], row["delta"], row["clipped"]) for row in rounds]
            assert told == [(total_cost([Gaussian(2.0, at)], DELTA).epsilon, DELTA, None) for at in (1, 2)]
            assert [row["training"] for row in rounds] == [{}, {}], "the sums that devices report are not released"
            async with operator.app.state.coordinator.storage.database.read() as session:
                from sqlalchemy import text

                left = (await session.execute(text("SELECT name FROM secrets WHERE name LIKE 'noise/%'"))).all()
            assert left == []

    run(work())


async def refused_jobs(operator: Operator) -> list[str]:
    """Of which kinds jobs could not be done."""
    async with operator.app.state.coordinator.storage.database.read() as session:
        return list((await session.execute(select(JobRow.kind).where(JobRow.failures > 0))).scalars())


def test_a_round_whose_row_forgets_its_noise_makes_no_version(coordinator: Opener) -> None:
    """As in a database of an older coordinator, in the middle of a round: nothing is released without noise."""

    async def work() -> None:
        async with coordinator() as operator:
            devices = await fleet(operator, await operator.population(), 2)
            experiment = await started(operator, private(), rounds=1)
            database = operator.app.state.coordinator.storage.database
            async with database.write("policy") as session:
                opened = (await experiments.lock(session, experiment)).opened
                assert opened is not None
                value = json.loads(opened.row.state)
                assert value["config"].pop("noised") is True
                opened.row.state = json.dumps(value)
            await deliver(devices)
            async with asyncio.timeout(patience(20)):
                while not await refused_jobs(operator):
                    await asyncio.sleep(0.02)
            view = await operator.ok("GET", f"/v1/experiments/{experiment}")
            assert view["state"] == "running"
            assert not [entry for entry in await entries(operator) if isinstance(entry.event, Spend)]
            models = await operator.ok("GET", f"/v1/experiments/{experiment}/models")
            assert [model["round"] for model in models["items"]] == [0]

    run(work())


def test_the_coordinator_clips_what_a_device_did_not(coordinator: Opener) -> None:
    """Noise so small that the mean shows: each of the huge updates has the norm of the clip, whatever its weight."""

    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            devices = await fleet(operator, token, 2)
            experiment = await started(operator, private(noise=1e-4, clip=0.5), rounds=1)
            await deliver(devices[:1], 1e6)
            await deliver(devices[1:], 1e-3)
            view = await operator.finished(experiment)
            mean = await weights(operator, view["latest"])
            want = (0.5 / np.sqrt(SIZE) + 1e-3) / 2
            assert np.abs(mean - want).max() < 1e-3
            assert np.abs(mean - want).max() > 0

    run(work())


def test_the_sum_is_divided_by_the_cohort_that_was_asked_for(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            devices = await fleet(operator, token, 1)
            level = private(noise=1e-4)
            with held():
                experiment = await started(operator, level, rounds=1, cohort=4, min_updates=1, deadline_s=1.0)
                await deliver(devices, 0.1)
            view = await operator.finished(experiment)
            assert np.abs(await weights(operator, view["latest"]) - 0.1 / 4).max() < 1e-3

    run(work())


def test_an_adaptive_clip_moves_and_is_paid_for(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            devices = await fleet(operator, token, 2)
            adaptive = AdaptiveClip(rate=2.0, bits_noise=50.0)
            experiment = await started(operator, private(noise=2.0, clip=1e-4, adaptive=adaptive), rounds=3)
            for _ in range(3):
                await deliver(devices)
            await operator.finished(experiment)
            costs = [entry.event.cost for entry in await entries(operator) if isinstance(entry.event, Reserve)]
            assert [len(cost) for cost in costs] == [2, 2, 2], "the sum and the clip bits"
            found = (await budget(operator))["experiments"][0]
            assert found["epsilon_spent"] == pytest.approx(total_cost([Gaussian(2.0, 3)], DELTA).epsilon, rel=1e-6)

    run(work())


@pytest.mark.parametrize("mechanism", ["toeplitz", "blt"])
def test_correlated_noise_goes_on_from_round_to_round(coordinator: Opener, mechanism: str) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            devices = await fleet(operator, token, 4)
            privacy = private(noise=1e-4, mechanism=mechanism, min_separation=2, max_participations=2)
            experiment = await started(operator, privacy, rounds=4, rest_rounds=1)
            for place in range(4):
                await deliver(devices[2 * (place % 2) : 2 * (place % 2) + 2], 0.1)
            view = await operator.finished(experiment)
            assert view["reason"] == "completed"
            found = (await budget(operator))["experiments"][0]
            assert found["rounds_spent"] == 4
            assert found["epsilon_spent"] == pytest.approx(found["limit"], rel=1e-3)

    run(work())


def test_an_abandoned_round_gives_its_cost_back_unless_it_was_spent(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            (device,) = await fleet(operator, token, 1)
            experiment = await started(operator, private(), rounds=2)
            await deliver([device])
            await operator.ok("POST", f"/v1/experiments/{experiment}/stop")
            events = [entry.event for entry in await entries(operator)]
            assert [type(event) for event in events] == [Limit, Reserve, Refund]
            found = (await budget(operator))["experiments"][0]
            assert (found["epsilon"], found["rounds_refunded"]) == (0, 1)
            # A server whose step overflows fails after the noise was drawn: paid, and not given back.
            failing = await started(operator, private(clip=1e6), rounds=1, cohort=1, lr=1e34)
            await deliver([device], 1e38)
            await operator.finished(failing)
            (row,) = await operator.rounds(failing)
            assert row["cause"] == "aggregate_failed"
            assert isinstance((await entries(operator))[-1].event, Spend)

    run(work())


def test_a_limit_refuses_what_it_cannot_pay_and_says_which(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            await operator.population()
            one = total_cost([Gaussian(2.0, 2)], DELTA).epsilon
            await policy(operator, max_epsilon_per_experiment=one * 0.9, delta=DELTA)
            answer = await submitted(operator, private(), rounds=2)
            assert (answer.status_code, answer.json()["code"]) == (409, "budget_each")
            assert "max_epsilon_per_experiment" in answer.json()["detail"]
            assert (await budget(operator))["experiments"] == [], "what is refused leaves nothing behind"
            await policy(operator, max_epsilon_per_experiment=None, max_epsilon_per_year=one * 1.1)
            await started(operator, private(), rounds=2)
            answer = await submitted(operator, private(noise=1.0), rounds=2)
            assert (answer.status_code, answer.json()["code"]) == (409, "budget_year")
            assert "max_epsilon_per_year" in answer.json()["detail"]

    run(work())


def test_epsilon_exhausted_between_rounds_ends_the_experiment_by_name(coordinator: Opener) -> None:
    """Two experiments that each fit the year begin; the year does not hold both to their ends."""

    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            devices = await fleet(operator, token, 4)
            await policy(operator, max_epsilon_per_year=total_cost([Gaussian(2.0, 3)], DELTA).epsilon, delta=DELTA)
            first = await started(operator, private(), rounds=2)
            second = await started(operator, private(), rounds=2)
            await deliver(devices)
            # Whichever commits its first round first takes what is left.
            both = (first, second)
            async with asyncio.timeout(patience(60)):
                while "finished" not in [(await operator.ok("GET", f"/v1/experiments/{one}"))["state"] for one in both]:
                    await asyncio.sleep(0.02)
            await deliver(devices[:2])
            ends = [await operator.finished(one) for one in both]
            assert sorted(end["reason"] for end in ends) == ["budget_exhausted", "completed"]
            short = next(end for end in ends if end["reason"] == "budget_exhausted")
            assert short["state"] == "finished" and len(await operator.models(short["id"])) == 2
            async with operator.app.state.coordinator.storage.database.read() as session:
                from sqlalchemy import text

                rows = (await session.execute(text("SELECT data FROM events WHERE type='experiment.finished'"))).all()
            told = next(row.data for row in rows if "budget_exhausted" in row.data)
            assert '"limit": "budget_year"' in told and '"epsilon":' in told and "365 days" in told
            within = await budget(operator)
            assert within["epsilon_year"] <= within["limits"][0]["epsilon"] * 1.0001

    run(work())


def test_lowering_a_limit_ends_what_runs(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            devices = await fleet(operator, token, 2)
            experiment = await started(operator, private(), rounds=50)
            await deliver(devices)
            await operator.until_round(experiment, 2, "collecting")
            await policy(operator, max_epsilon_per_experiment=0.01, delta=DELTA)
            await deliver(devices)
            assert (await operator.finished(experiment))["reason"] == "budget_exhausted"

    run(work())


def test_the_ledger_comes_in_pages(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            await operator.population()
            for epsilon in (1.0, 2.0, 3.0):
                await policy(operator, max_epsilon_per_year=epsilon, delta=DELTA)
            path, found = "/v1/populations/people/budget/entries?limit=2", list[int]()
            page = await operator.ok("GET", path)
            found += [item["sequence"] for item in page["items"]]
            page = await operator.ok("GET", f"{path}&cursor={page['next_cursor']}")
            found += [item["sequence"] for item in page["items"]]
            assert (found, page["next_cursor"]) == ([1, 2, 3], None)
            missing = await operator.call("GET", "/v1/populations/nobody/budget")
            assert (missing.status_code, missing.json()["code"]) == (404, "population_unknown")

    run(work())


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "weights": (private(), {"weight_cap": 100}, "weight_cap=100"),
    "evaluation": (private(), {"evaluate_every": 1}, "evaluate_every=1"),
    "buffered": (private(), {"mode": "buffered"}, "mode='buffered'"),
    "devices' noise without masks": (private(mechanism="skellam"), {}, "mechanism='skellam'"),
    "sizes that tell": (private(), {"codecs": ("int8+rice",)}, "codecs=('int8+rice',)"),
    "rest": (private(min_separation=3), {}, "rest_rounds=2"),
    "schedule": (private(schedule=(1.0, 1.0, 1.0)), {}, "3 factors for 2 rounds"),
    "unknown": ({"level": "galaxy"}, {}, "Input tag 'galaxy'"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_privacy_excludes_is_refused_by_name(coordinator: Opener, name: str) -> None:
    privacy, changes, words = REFUSED[name]

    async def work() -> None:
        async with coordinator() as operator:
            await operator.population()
            answer = await submitted(operator, privacy, **changes)
            assert answer.status_code == 422 and words in answer.json()["detail"], answer.text

    run(work())


def test_a_broken_ledger_stops_spending_and_nothing_else(coordinator: Opener, settings: Settings) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            (device, *_) = await fleet(operator, token, 2)
            experiment = await started(operator, private(), rounds=2)
            await deliver([device])
        with sqlite3.connect(settings.folder / "coterie.db") as database:
            database.execute("UPDATE ledger SET at = at + 1 WHERE sequence = 1")
        database.close()
        async with coordinator() as operator:
            for answer in (
                await operator.call("GET", "/v1/populations/people/budget"),
                await submitted(operator, private()),
            ):
                assert (answer.status_code, answer.json()["code"]) == (507, "ledger_broken"), answer.text
                assert "broken at entry 1: its digest" in answer.json()["detail"]
            assert (await submitted(operator, None)).status_code == 201, "what costs nothing goes on"
            stopped = await operator.call("POST", f"/v1/experiments/{experiment}/stop")
            assert stopped.status_code == 202 and stopped.json()["state"] == "stopped"

    run(work())
