"""Experiments that only evaluate: a cohort measures the version that was given, and nothing is trained."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from server_kit import Opener, fleet, update

from tests.held_clock import held


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run an asynchronous test."""
    asyncio.run(work)


def test_a_cohort_measures_the_given_version_and_trains_nothing(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            devices = await fleet(operator, await operator.population(), 2)
            experiment = await operator.experiment(rounds=2, cohort=2, purpose="evaluate", evaluate_every=1)
            given = (await operator.state(experiment))["initial"]
            for number in (1, 2):
                for device, sums in zip(devices, ([10, 5, 8], [30, 45, 12]), strict=True):
                    task = await device.task()
                    assert (task.kind, task.round, task.model.sha256) == ("evaluate", number, given)
                    answer = await device.upload(task, update(task, sums=sums))
                    assert answer.json()["state"] == "accepted", answer.text
                await operator.until_round(experiment, number, "committed")
            view = await operator.finished(experiment)
            assert (view["state"], view["reason"], view["latest"]) == ("finished", "completed", given)
            for entry in await operator.rounds(experiment):
                assert (entry["evaluation"], entry["evaluated"], entry["accepted"]) == ("federated", 2, 0)
                assert entry["metrics"] == {"loss": 50 / 40, "accuracy": 20 / 40}
            # No version was made, so the lineage has none.
            assert [model["round"] for model in await operator.models(experiment)] == [0]

    run(work())


def test_too_few_evaluations_end_by_name(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            (device,) = await fleet(operator, await operator.population(), 1)
            short: dict[str, Any] = {"rounds": 1, "cohort": 2, "evaluate_every": 1, "deadline_s": 1.0}
            with held():
                experiment = await operator.experiment(purpose="evaluate", **short)
                task = await device.task()
                await device.upload(task, update(task, sums=[10, 5, 8]))
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert (entry["state"], entry["cause"], entry["evaluated"]) == ("abandoned", "too_few_updates", 1)

    run(work())
