"""Whole rounds over HTTP, in this process, with devices that know their answers."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import numpy as np
import pytest
from server_kit import SCHEMA, Opener, Operator, fleet, update
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.testing import capture_logs

from coterie.aggregation.engine import DeadlinePassed, RoundEvent
from coterie.protocol.conversion import to_json
from coterie.protocol.tensors import decode_tensors
from coterie.server import board, driver
from coterie.server.auth.caller import Caller
from coterie.server.control.events import follow
from coterie.server.credentials.tokens import parse_token
from coterie.server.rounds.transitions import Rounds
from coterie.server.store import experiments
from coterie.server.store.experiments import OpenRound
from coterie.server.store.tables import ExperimentRow
from tests.held_clock import held
from tests.patience import patience


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


def test_the_event_stream_replays_resumes_and_goes_on(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            (device,) = await fleet(operator, await operator.population(), 1)
            experiment = await operator.experiment(rounds=1, cohort=1)
            task = await device.task()
            await device.upload(task, update(task))
            await operator.finished(experiment)
            here = operator.app.state.coordinator
            whole = await taken(follow(here, caller(operator), 0, experiment), until="experiment.finished")
            types = [event["type"] for event in whole]
            assert types[0] == "experiment.created" and types[-1] == "experiment.finished"
            assert types.index("update.accepted") < types.index("round.aggregating") < types.index("round.committed")
            (committed,) = [event["data"] for event in whole if event["type"] == "round.committed"]
            (entry,) = await operator.rounds(experiment)
            assert (committed["event"], committed["round"], committed["state"]) == ("round", 1, "committed")
            assert (committed["bytes_up"], committed["model"]) == (len(update(task)), entry["model"])
            middle = whole[3]["id"]
            assert (
                await taken(follow(here, caller(operator), middle, experiment), until="experiment.finished")
                == whole[4:]
            )
            # Another experiment's events do not show, and what is still to come does.
            last = whole[-1]["id"]
            later = asyncio.create_task(taken(follow(here, caller(operator), last, None), until="population.created"))
            await asyncio.sleep(0.05)
            body = {"name": "others", "data_schema": to_json(SCHEMA)}
            await operator.ok("POST", "/v1/populations", json=body)
            (event,) = await asyncio.wait_for(later, patience(5))
            assert event["data"] == {"population": "others"} and event["id"] > last

    run(work())


def caller(operator: Operator) -> Caller:
    """The administrator as the gate lets it through."""
    token = parse_token(operator.token).id
    return Caller(token=token, role="admin", population=None, expires_at=None)


async def taken(stream: AsyncIterator[bytes], until: str) -> list[dict[str, Any]]:
    """The events of a stream up to the first of a type, and not a heartbeat."""
    found: list[dict[str, Any]] = []
    async for chunk in stream:
        lines = chunk.decode().splitlines()
        if lines and lines[0].startswith("id: "):
            assert lines[0] == f"id: {json.loads(lines[2].removeprefix('data: '))['id']}"
            found.append(json.loads(lines[2].removeprefix("data: ")))
            if found[-1]["type"] == until:
                break
    return found


def test_an_idle_stream_sends_heartbeats(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator(heartbeat_s=0.05) as operator:
            here = operator.app.state.coordinator
            async for chunk in follow(here, caller(operator), 1 << 40, None):
                if chunk == b": heartbeat\n\n":
                    break
            else:
                pytest.fail("the stream ended without a heartbeat")

    run(work())


def test_devices_measure_the_new_version_and_the_mean_is_weighted_by_examples(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            devices = await fleet(operator, await operator.population(), 2)
            experiment = await operator.experiment(rounds=1, evaluate_every=1)
            for device in devices:
                task = await device.task()
                await device.upload(task, update(task))
            for device, sums in zip(devices, ([10, 5, 8], [30, 45, 12]), strict=True):
                task = await device.task()
                assert task.kind == "evaluate"
                answer = await device.upload(task, update(task, sums=sums))
                assert answer.json()["state"] == "accepted", answer.text
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert (entry["evaluation"], entry["evaluated"]) == ("federated", 2)
            assert entry["metrics"] == {"loss": 50 / 40, "accuracy": 20 / 40}

    run(work())


def test_rounds_without_enough_updates_are_abandoned_by_name_and_stall_the_experiment(
    coordinator: Opener, usual_logs: None
) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            (device,) = await fleet(operator, await operator.population(), 1)
            with held():
                experiment = await operator.experiment(rounds=9, min_updates=2, deadline_s=0.4)
                task = await device.task()
                assert (await device.upload(task, update(task))).status_code == 200
            with capture_logs() as logs:
                view = await operator.finished(experiment)
            assert (view["state"], view["reason"]) == ("finished", "stalled")
            (told,) = [line for line in logs if line["event"] == "experiment ended"]
            assert told["log_level"] == "warning" and "rounds in a row were abandoned" in told["why"]
            causes = [entry["cause"] for entry in await operator.rounds(experiment)]
            assert causes == ["too_few_updates", "deadline", "deadline"]
            assert (await device.check_in([task.id]))["settled"] == {task.id: "rolled_back"}
            assert [model["round"] for model in await operator.models(experiment)] == [0]

    run(work())


def test_a_restart_in_the_middle_of_a_round_goes_on_with_it(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            first, second = await fleet(operator, await operator.population(), 2)
            experiment = await operator.experiment(rounds=1)
            one, two = await first.task(), await second.task()
            await first.upload(one, update(one, 1.0))
        async with coordinator() as operator:
            first.http = second.http = operator.http
            assert (await second.task()).id == two.id
            await second.upload(two, update(two, 3.0))
            await operator.finished(experiment)
            (entry,) = await operator.rounds(experiment)
            assert (entry["state"], entry["accepted"]) == ("committed", 2)
            assert np.allclose(await weights(operator, entry["model"]), 2.0)

    run(work())


def test_a_database_that_fails_once_leaves_no_device_idle(coordinator: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            (device,) = await fleet(operator, await operator.population(), 1)
            # Once for whoever looks first after the experiment was created, and once more for who tries again.
            running, failures = experiments.running_ids, [True, True]

            async def fails_once(session: AsyncSession) -> Sequence[str]:
                if failures:
                    failures.pop()
                    raise OSError("disk I/O error")
                return await running(session)

            monkeypatch.setattr(experiments, "running_ids", fails_once)
            monkeypatch.setattr(board, "RETRY_S", 0.05)
            await operator.experiment(rounds=1, cohort=1)
            assert await device.task(5)
            assert not failures

    run(work())


def test_a_deadline_that_cannot_be_kept_is_tried_again_a_little_later_and_not_without_a_pause(
    coordinator: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, apply = list[float](), Rounds.apply

    async def troubled(
        self: Rounds, session: AsyncSession, owner: ExperimentRow, opened: OpenRound, event: RoundEvent, *more: Any
    ) -> OpenRound | None:
        if isinstance(event, DeadlinePassed):
            tries.append(time.monotonic())
            if len(tries) < 3:
                raise OSError("no")
        return await apply(self, session, owner, opened, event, *more)

    monkeypatch.setattr(Rounds, "apply", troubled)

    async def work() -> None:
        async with coordinator() as operator:
            await operator.population()
            experiment = await operator.experiment(deadline_s=1.0)
            await operator.until_round(experiment, 1, "abandoned")
            assert len(tries) >= 3 and tries[2] - tries[0] >= 1.5 * driver.RETRY_S

    run(work())
