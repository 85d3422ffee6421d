"""Whole rounds over HTTP, in this process, with devices that know their answers."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np
from server_kit import Opener, Operator, fleet, update

from coterie.protocol.tensors import decode_tensors


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run an asynchronous test."""
    asyncio.run(work)


async def weights(operator: Operator, sha256: str) -> np.ndarray[Any, Any]:
    """The numbers of a model version, in layout order."""
    tensors = decode_tensors((await operator.http.get(f"/v1/blobs/{sha256}")).content)
    return np.concatenate([tensors["w"], tensors["b"]])


def test_two_rounds_of_two_devices_make_the_weighted_mean(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            devices = await fleet(operator, token, 2)
            experiment = await operator.experiment()
            for number in (1, 2):
                for device, value, weight in zip(devices, (1.0, 4.0), (20, 10), strict=True):
                    task = await device.task()
                    assert task.round == number
                    answer = await device.upload(task, update(task, value, weight=weight))
                    assert answer.json()["state"] == "accepted"
                await operator.until_round(experiment, number, "committed")
            view = await operator.finished(experiment)
            assert (view["state"], view["reason"]) == ("finished", "completed")
            models = await operator.models(experiment)
            assert [model["round"] for model in models] == [0, 1, 2]
            assert [model["parent"] for model in models[1:]] == [model["sha256"] for model in models[:-1]]
            # The mean is 2; with momentum 0.5 the second step is 0.5 * 2 + 2.
            assert np.allclose(await weights(operator, models[1]["sha256"]), 2.0)
            assert np.allclose(await weights(operator, models[2]["sha256"]), 5.0)

    run(work())
