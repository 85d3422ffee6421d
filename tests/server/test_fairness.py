"""How clients differ, told over HTTP by counts that add."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from server_kit import Device, Opener, fleet, tiny, update

from coterie.aggregation.evaluate import evaluation_sections
from coterie.protocol.device import Task
from coterie.protocol.metrics import MetricSums
from coterie.protocol.spread import SECTION
from coterie.protocol.update import encode_update


async def evaluation(device: Device, sums: Sequence[float]) -> Task:
    """A device's evaluation, accepted."""
    task = await device.task()
    assert task.kind == "evaluate"
    assert (await device.upload(task, update(task, sums=sums))).status_code == 200
    return task


def lie(task: Task, counts: NDArray[np.float32]) -> bytes:
    """An evaluation whose counts are these."""
    manifest = tiny().manifest
    sums = MetricSums.from_vector(manifest.metrics, np.array([10.0, 5.0, 5.0]))
    return encode_update(
        task=task.id, plan=task.plan.id, base=task.model.sha256, weight=10, steps=0,
        specs=manifest.sections_for("evaluate"), sections={**evaluation_sections(manifest, sums), SECTION: counts},
    ).data  # fmt: skip


def test_a_round_tells_the_worst_decile_of_its_clients(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            devices = await fleet(operator, await operator.population(), 3)
            experiment = await operator.experiment(rounds=1, cohort=3, evaluate_every=1)
            for device in devices:
                task = await device.task()
                await device.upload(task, update(task))
            # A large client that does well hides two small ones in the mean, but not in the deciles.
            for device, sums in zip(devices, ([80, 8, 80], [8, 8, 2], [8, 16, 4]), strict=True):
                await evaluation(device, sums)
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert entry["metrics"]["accuracy"] == pytest.approx(86 / 96)
            assert entry["fairness"]["accuracy"] == {
                "clients": 3, "worst_decile": 0.25, "median": 0.5, "best_decile": 1.0,
                "deviation": pytest.approx(np.std([0.25, 0.5, 1.0])),
            }  # fmt: skip
            assert entry["fairness"]["loss"]["worst_decile"] == 2.0
            assert entry["training"] == {"loss": 0.5, "accuracy": 0.75}

    asyncio.run(work())


Spoil = Callable[[NDArray[np.float32]], NDArray[Any]]
LIES: dict[str, tuple[Spoil, str]] = {
    "a client that counts twice": (lambda counts: counts * 2, "out_of_range"),
    "a client that counts everywhere": (np.ones_like, "metric_invalid"),
    "a client that does not count": (np.zeros_like, "metric_invalid"),
    "half a client": (lambda counts: counts / 2, "metric_invalid"),
    "a client that takes from others": (lambda counts: -counts, "out_of_range"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_client_that_lies_about_its_count_is_refused_and_the_round_goes_on(name: str, coordinator: Opener) -> None:
    spoil, code = LIES[name]

    async def work() -> None:
        async with coordinator() as operator:
            liar, honest, other = await fleet(operator, await operator.population(), 3)
            experiment = await operator.experiment(rounds=1, evaluate_every=1)
            for device in (honest, other):
                task = await device.task()
                await device.upload(task, update(task))
            task = await liar.task()
            manifest = tiny().manifest
            true = evaluation_sections(manifest, MetricSums({"examples": 10, "loss": 5, "accuracy": 5}))[SECTION]
            answer = await liar.upload(task, lie(task, spoil(true).astype(np.float32)))
            assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
            for device in (honest, other):
                await evaluation(device, [10, 5, 8])
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert (entry["state"], entry["evaluated"], entry["fairness"]["loss"]["clients"]) == ("committed", 2, 2)

    asyncio.run(work())
