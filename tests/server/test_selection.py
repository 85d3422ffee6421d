"""Selection over HTTP: tasks kept for the chosen for a while, eligibility by what devices say and did, and rest."""

import asyncio
import json
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from server_kit import SCHEMA, Device, Opener, Recipe, fleet, policy, update

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.eligibility import candidate, eligible
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.horizontal import Algorithm, FedAsync, FedBuff, Scaffold
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.protocol.control import ExperimentCreate, RoundPolicy, ServerRule
from coterie.protocol.device import Capabilities, DataReport, Task
from coterie.protocol.features import FEATURES
from coterie.server.clock import now_ms
from coterie.server.device.assignment import candidates, lease
from coterie.server.rounds.asking import Asker
from coterie.server.rounds.eligibility import contribution, holdings
from coterie.server.rounds.reservations import kept_for_others
from coterie.server.store.tables import ParticipationRow, RoundRow
from tests.patience import patience


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run an asynchronous test."""
    asyncio.run(work)


async def ask(device: Device, data: dict[str, Any] | None = None) -> Task | None:
    """Check in once, saying what the device has."""
    body = {"capabilities": {"trainers": ["plan", "external"], "features": ["evaluate/1"]}, "data": data}
    answer = await device.send("POST", "/v1/device/check-in", json.dumps(body).encode())
    assert answer.is_success, answer.text
    found = answer.json()["task"]
    return None if found is None else Task.model_validate(found)


async def train(device: Device, task: Task, loss: float = 1.0) -> None:
    """Answer a task; loss: the mean that the update reports."""
    answer = await device.upload(task, update(task, sums=(10, 10 * loss, 5)))
    assert answer.status_code == 200, answer.text


async def takers(devices: Sequence[Device]) -> dict[int, Task]:
    """Who gets a task when each asks once, the last first."""
    asked = {number: await ask(devices[number]) for number in reversed(range(len(devices)))}
    return {number: task for number, task in asked.items() if task is not None}


async def chosen(devices: Sequence[Device], count: int) -> dict[int, Task]:
    """Who gets a task of a round that begins a moment after the one before."""
    found: dict[int, Task] = {}
    async with asyncio.timeout(patience(10)):
        while len(found) < count:
            found |= await takers(devices)
            await asyncio.sleep(0.05)
    return found


# Long windows, so that what is kept for the chosen stays kept while a test looks.
SLOW: dict[str, Any] = {"retry_floor_s": 20.0, "retry_idle_s": 20.0}


def test_the_tasks_of_a_round_are_kept_for_those_it_chooses(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator(**SLOW) as operator:
            devices = await fleet(operator, await operator.population(), 4)
            assert await takers(devices) == {}
            experiment = await operator.experiment(rounds=2, cohort=2, selection="least_recent", deadline_s=300.0)
            first = await takers(devices)
            assert len(first) == 2
            for number, task in first.items():
                await train(devices[number], task)
            await operator.until_round(experiment, 1, "committed")
            second = await chosen(devices, 2)
            assert set(second) == {0, 1, 2, 3} - set(first)

    run(work())


def test_whom_a_round_waits_for_in_vain_leaves_its_place(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator(retry_floor_s=2.0, retry_idle_s=2.0) as operator:
            one, two, three = await fleet(operator, await operator.population(), 3)
            assert await takers((one, two, three)) == {}
            experiment = await operator.experiment(rounds=1, cohort=1, selection="cyclic")
            # The first by id is chosen, and never comes.
            assert await ask(two) is None and await ask(three) is None
            await train(two, await two.task(30))
            assert (await operator.finished(experiment))["reason"] == "completed"

    run(work())


def test_power_of_choice_asks_the_unknown_then_the_highest_loss(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator(**SLOW) as operator:
            devices = await fleet(operator, await operator.population(), 3)
            assert await takers(devices) == {}
            experiment = await operator.experiment(rounds=4, cohort=1, selection="power_of_choice(3)", deadline_s=300.0)
            order: list[int] = []
            for number in (1, 2, 3, 4):
                ((who, task),) = (await chosen(devices, 1)).items()
                await train(devices[who], task, loss=float(1 + who))
                await operator.until_round(experiment, number, "committed")
                order.append(who)
            assert sorted(order[:3]) == [0, 1, 2] and order[3] == 2

    run(work())


@pytest.mark.parametrize(
    ("data", "fits"),
    [
        (None, False),
        ({"examples": 49, "labels": [0, 1]}, False),
        ({"examples": 50, "labels": [0]}, False),
        ({"examples": 50, "labels": [0, 1, 2]}, True),
    ],
)
def test_who_must_have_data_must_say_so(data: dict[str, Any] | None, fits: bool, coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            (device,) = await fleet(operator, await operator.population(), 1)
            await operator.experiment(rounds=1, cohort=1, min_examples=50, labels=[0, 1])
            assert (await ask(device, data) is not None) == fits

    run(work())


def test_who_has_contributed_rests(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            one, two = await fleet(operator, await operator.population(), 2)
            experiment = await operator.experiment(rounds=3, cohort=1, rest_rounds=1, rest_s=3600.0)
            await train(one, await one.task())
            await operator.until_round(experiment, 1, "committed")
            answer = await one.check_in()
            assert answer["task"] is None
            assert answer["retry_if_accepted"] == {"min_ms": 3_600_000, "max_ms": 4_320_000}
            assert answer["retry_if_rejected"]["max_ms"] < 1000
            await train(two, await two.task())
            await operator.until_round(experiment, 2, "committed")
            assert await ask(one) is None  # an hour has not passed

    run(work())


@pytest.mark.parametrize(
    ("ago_ms", "rest_s", "may"),
    [(60_000, 60.0, True), (59_999, 60.0, False), (0, 0.0, True), (-3_600_000, 0.0, True), (-3_600_000, 60.0, True)],
)
def test_nobody_rests_longer_for_a_clock_that_was_set_back(ago_ms: int, rest_s: float, may: bool) -> None:
    policy = RoundPolicy(rounds=3, cohort=1, rest_s=rest_s)
    past = ParticipationRow(last_round=1, at=10**12 - ago_ms, times=1)
    assert eligible(policy, lambda: None, contribution(past, 10**12), round=2, privacy=None) is may


def test_a_selection_that_cannot_be_is_refused_before_anything_begins(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            await operator.population()
            refused: tuple[tuple[dict[str, Any], str], ...] = (
                ({"selection": "best_of(3)"}, "selection_invalid"),
                ({"labels": [0, 7]}, "labels_unknown"),
            )
            for changes, code in refused:
                request = await operator.request(**changes)
                answer = await operator.call("POST", "/v1/experiments", json=request.model_dump(mode="json"))
                assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text

    run(work())


def test_rows_count_for_no_more_than_an_update_may_weigh() -> None:
    policy = RoundPolicy(rounds=1, cohort=1, weight_cap=100)
    seen = candidate(policy, "a", holdings(DataReport(examples=1 << 50)), None)
    assert seen.examples == 100 and candidate(policy, "a", holdings(DataReport(examples=7)), None).examples == 7
    past = ParticipationRow(last_round=1, times=1, examples=60, loss=None, seconds=1.0, at=0)
    assert candidate(policy, "a", None, contribution(past, 1)).examples == 60


def test_nothing_is_kept_for_edge_aggregators(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            (device,) = await fleet(operator, await operator.population(), 1)
            body = {"kind": "edge", "population": "people", "max_clients": 5}
            edge = await Device(operator.http).enrol((await operator.ok("POST", "/v1/tokens", json=body))["token"])
            await device.check_in()
            await edge.check_in()
            assert operator.app.state.coordinator.presence.fleet.around("people", 0) == [device.id]

    run(work())


def test_a_device_that_has_answered_since_it_was_looked_up_gets_no_second_task(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            (device,) = await fleet(operator, await operator.population(), 1)
            experiment = await operator.experiment(rounds=1, cohort=2, deadline_s=300.0)
            here = operator.app.state.coordinator
            asker = Asker(
                id=device.id,
                population="people",
                nonce="a-nonce-that-nobody-used",
                nonce_expires=now_ms() + 60_000,
                capabilities=Capabilities(trainers=("plan", "external"), features=tuple(FEATURES)),
                data=None,
                clients=None,
            )
            async with here.storage.database.read() as session:
                assert await candidates(here, session, asker) == [(experiment, "train")]
            await train(device, await device.task())
            assert await lease(here, asker, experiment, "train") is None

    run(work())


def test_a_request_is_read_once_for_all_check_ins(coordinator: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            devices = await fleet(operator, await operator.population(), 3)
            await operator.experiment(rounds=1, cohort=3, deadline_s=300.0)
            await ask(devices[0])
            monkeypatch.setattr(ExperimentCreate, "model_validate_json", None)
            assert all([await ask(device) for device in devices])

    run(work())


@pytest.mark.parametrize(
    ("algorithm", "changes", "message"),
    [
        (Scaffold(4), {"mode": "buffered"}, "updates of one version"),
        (FedAsync(), {"mode": "buffered"}, "takes updates one by one"),
        (FedBuff(), {}, "needs buffered rounds"),
    ],
)
def test_a_method_in_rounds_that_it_was_not_made_for_is_refused(
    algorithm: Algorithm, changes: dict[str, Any], message: str, coordinator: Opener
) -> None:
    """The request says other rounds than the experiment that the plan was compiled from."""
    modes = {"fedasync": {"mode": "buffered", "cohort": 1}, "fedbuff": {"mode": "buffered"}}
    compiled = compile_plan(
        Experiment(
            name="other",
            model=mlp((2, 2)),
            schema=SCHEMA,
            rounds=policy(**modes.get(algorithm.name, {})),
            loss=softmax_cross_entropy,
            optimizer=sgd(0.1),
            algorithm=algorithm,
        )
    )
    recipe = Recipe(compiled.plan.manifest, compiled.plan.graphs, compiled.initial_bytes)

    async def work() -> None:
        async with coordinator() as operator:
            await operator.population()
            request = await operator.request(recipe=recipe, **changes)
            plain = ServerRule(name="sgd", parameters={"lr": 1.0, "momentum": 0.0})
            body = request.model_copy(update={"server": plain}).model_dump(mode="json")
            answer = await operator.call("POST", "/v1/experiments", json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "experiment_combination"), answer.text
            assert message in answer.json()["detail"]

    run(work())


def test_a_reservation_is_over_when_its_time_is() -> None:
    row = RoundRow(reserved='["a"]', reserved_until=1000)
    assert [kept_for_others(row, device, 999) for device in ("a", "b")] == [False, True]
    assert not kept_for_others(row, "b", 1000) and not kept_for_others(RoundRow(), "b", 0)
