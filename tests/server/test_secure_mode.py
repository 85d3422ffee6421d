"""The mode and the promise of a request over HTTP, whoever wrote it: as an experiment of the same words has them."""

from typing import Any

import pytest
from secure_kit import run, secure
from server_kit import Opener, fleet, once

from coterie.protocol.device import Task
from coterie.protocol.privacy import LocalLevel, Privacy, UserLevel

SHARED = UserLevel(clip=1.0, delta=1e-6, noise_multiplier=0.02, mechanism="discrete_gaussian")
CENTRAL = UserLevel(clip=1.0, delta=1e-6, noise_multiplier=0.02)
LOCAL = LocalLevel(mechanism="gaussian", epsilon=8.0, delta=1e-6)
KNOWS = (
    b'{"capabilities":{"trainers":["plan","external"],"secure":["secagg/1","local_noise/1"],'
    b'"features":["evaluate/1","shared_noise/1"]}}'
)
LEFT_OUT = "left out"
# Privacy, the mode on the wire → the mode of the task, and whom its promise trusts.
LAWS: tuple[tuple[Privacy | None, str | None, str, str | None], ...] = (
    (SHARED, LEFT_OUT, "consistent", "cohort"),
    (SHARED, None, "consistent", "cohort"),
    (SHARED, "consistent", "consistent", "cohort"),
    (SHARED, "semi_honest", "semi_honest", "coordinator"),
    (CENTRAL, LEFT_OUT, "semi_honest", "coordinator"),
    (CENTRAL, "consistent", "consistent", "coordinator"),
    (LOCAL, None, "semi_honest", "device"),
    (LOCAL, "consistent", "consistent", "device"),
    (None, LEFT_OUT, "semi_honest", None),
    (None, "consistent", "consistent", None),
)


def wire(mode: str | None, **changes: Any) -> dict[str, Any]:
    """How secure aggregation is asked for, with this mode or without one."""
    written = {**secure(norm=1.0, **changes).model_dump(mode="json"), "mode": mode}
    return {name: value for name, value in written.items() if not (name == "mode" and mode == LEFT_OUT)}


@pytest.mark.parametrize(("privacy", "mode", "runs", "trusts"), LAWS)
def test_a_task_runs_in_the_mode_that_its_noise_needs_and_says_whom_it_trusts(
    coordinator: Opener, privacy: Privacy | None, mode: str | None, runs: str, trusts: str | None
) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            request = await operator.request(rounds=1, cohort=5, min_updates=4, weight_cap=1, evaluate_every=0)
            body = request.model_dump(mode="json") | {
                "secure": wire(mode),
                "privacy": None if privacy is None else privacy.model_dump(mode="json"),
            }
            await operator.ok("POST", "/v1/experiments", json=body, headers=once())
            (device,) = await fleet(operator, token, 1)
            asked = await device.send("POST", "/v1/device/check-in", KNOWS)
            task = Task.model_validate(asked.json()["task"])
            assert task.secure is not None and task.secure.mode == runs
            assert (None if task.privacy is None else task.privacy.trusts) == trusts

    run(work())


@pytest.mark.parametrize(("mode", "status"), [(LEFT_OUT, 422), (None, 422), ("consistent", 422), ("semi_honest", 201)])
def test_fractions_are_held_to_the_mode_that_would_run(coordinator: Opener, mode: str | None, status: int) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            await operator.population()
            request = await operator.request(rounds=1, cohort=10, min_updates=10, weight_cap=1, evaluate_every=0)
            body = request.model_dump(mode="json") | {
                "secure": wire(mode, corrupt=0.3, dropout=0.3),
                "privacy": SHARED.model_dump(mode="json"),
            }
            answer = await operator.call("POST", "/v1/experiments", json=body, headers=once())
            assert answer.status_code == status, answer.text
            if status == 422:
                assert answer.json()["code"] == "experiment_combination" and "consistent" in answer.json()["detail"]

    run(work())
