"""A device says what it can do, and gets no task that needs more; what it does not know in an answer it passes by."""

import asyncio
import json
from typing import Any

import pytest
from server_kit import Device, Opener, fleet, update

from coterie.aggregation.plan.needs import Needs
from coterie.protocol.control import ExperimentCreate
from coterie.protocol.device import Capabilities, CheckInResponse, Task
from coterie.protocol.features import FEATURES, OPSET
from coterie.protocol.wire import read_message
from coterie.server.rounds.asking import KINDS, Asker, lacks, within_reach
from tests.patience import patience

ALL = tuple(FEATURES)


async def asks(device: Device, **capabilities: Any) -> dict[str, Any]:
    told = {"trainers": ["plan", "external"], "features": list(ALL), **capabilities}
    answer = await device.send("POST", "/v1/device/check-in", json.dumps({"capabilities": told}).encode())
    assert answer.is_success, answer.text
    return answer.json()


def asker(**capabilities: Any) -> Asker:
    told = Capabilities.model_validate({"trainers": ("plan", "external"), **capabilities})
    return Asker(id="d", population="p", nonce="n", nonce_expires=0, capabilities=told, data=None, clients=None)


REQUEST: Any = ExperimentCreate.model_construct(secure=None, privacy=None, rounds=None, reducer="mean")


@pytest.mark.parametrize("missing", sorted(set(FEATURES) - {"evaluate/1", "shared_noise/1"}))
def test_no_task_goes_to_a_device_that_lacks_a_feature_of_its_plan(missing: str) -> None:
    needs = Needs("plan", frozenset({missing}))
    others = tuple(name for name in FEATURES if name != missing)
    assert lacks(REQUEST, needs, asker(features=others)) == "features"
    assert lacks(REQUEST, needs, asker(features=ALL)) is None
    assert not any(within_reach(REQUEST, needs, kind, asker(features=others)) for kind in KINDS)


def test_no_plan_goes_to_a_runtime_of_an_older_opset() -> None:
    assert lacks(REQUEST, Needs("plan", frozenset()), asker(opset=OPSET - 1)) == "features"
    assert lacks(REQUEST, Needs("plan", frozenset()), asker(opset=OPSET + 5)) is None
    assert lacks(REQUEST, Needs("external", frozenset()), asker(opset=OPSET - 1)) is None


def test_a_device_that_cannot_evaluate_trains_and_is_given_no_evaluation(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            (device, able) = await fleet(operator, await operator.population(), 2)
            await operator.experiment(cohort=1, rounds=1, evaluate_every=1, evaluation_cohort=1)
            answer = await asks(device, features=[])
            while answer["task"] is None:
                await asyncio.sleep(0.05)
                answer = await asks(device, features=[])
            assert answer["task"]["kind"] == "train"
            task = Task.model_validate(answer["task"])
            assert (await device.upload(task, update(task))).is_success
            found = None
            async with asyncio.timeout(patience(30)):
                while found is None:
                    assert (await asks(device, features=[]))["task"] is None
                    found = (await asks(able))["task"]
                    await asyncio.sleep(0.05)
            assert found["kind"] == "evaluate"

    asyncio.run(work())


def test_devices_pass_by_fields_that_they_do_not_know() -> None:
    window = {"min_ms": 1, "max_ms": 2}
    told = {"retry_if_accepted": window, "retry_if_rejected": {**window, "jitter": "even"}, "weather": {"wind": 3}}
    read = read_message(CheckInResponse, told)
    assert read.task is None and read.retry_if_accepted.max_ms == 2
