"""What a coordinator refuses of edge aggregators, and what an edge aggregator refuses: each by name."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_kit import SIZE, Device, Opener, Operator, once, tiny, update

from coterie.aggregation.plan.manifest import DELTA, METRICS
from coterie.errors import ConfigurationError, CoterieError
from coterie.protocol.device import EdgeTerms, Task
from coterie.protocol.privacy import UserLevel
from coterie.protocol.update import encode_update
from coterie.server.credentials.tokens import new_token
from coterie.server.edge.mirror import local_config, needed
from coterie.server.faults import CoordinatorFaults
from coterie.server.lifetime import open_coordinator
from coterie.server.settings import Settings
from coterie.server.store import devices
from tests.empty_database import prepare
from tests.patience import patience


def run(coordinator: Opener, story: Callable[[Operator, Device], Awaitable[None]], **bounds: int) -> None:
    """A coordinator in this process, and an enrolled edge aggregator that the test plays."""

    async def inside() -> None:
        async with coordinator() as operator, asyncio.timeout(patience(60)):
            await operator.population()
            body = {"kind": "edge", "population": "people", "max_clients": 5, **bounds}
            token = (await operator.ok("POST", "/v1/tokens", json=body, headers=once()))["token"]
            await story(operator, await Device(operator.http).enrol(token))

    asyncio.run(inside())


def accumulator_of(task: Task, clients: int, value: float = 1.0, weight: int | None = None, **changes: Any) -> bytes:
    """What an edge aggregator answers: sums over so many clients with the same value."""
    whole = 10 * clients if weight is None else weight
    sections = {DELTA: np.full(SIZE, value * whole), METRICS: np.array([whole, 0.5 * whole, 0.75 * whole])}
    fields: dict[str, Any] = {
        "task": task.id,
        "plan": task.plan.id,
        "base": task.model.sha256,
        "weight": whole,
        "steps": clients,
        "specs": tiny().manifest.sections,
        "sections": sections,
        "kind": "accumulator",
        "clients": clients,
    }
    return encode_update(**(fields | changes)).data


def test_an_accumulator_within_its_terms_becomes_the_version(coordinator: Opener) -> None:
    async def story(operator: Operator, edge: Device) -> None:
        deadline_s = patience(30.0)
        experiment = await operator.experiment(cohort=1, rounds=1, deadline_s=deadline_s)
        task = await edge.task()
        assert task.edge is not None
        assert (task.edge.min_clients, task.edge.max_clients, task.edge.reducer) == (2, 5, "mean")
        assert 0 < task.edge.deadline_ms <= 1000 * deadline_s
        again = Task.model_validate((await edge.check_in())["task"])
        assert again.edge is not None and again.edge.deadline_ms <= task.edge.deadline_ms
        answer = await edge.upload(task, accumulator_of(task, 5, 2.0))
        assert answer.is_success, answer.text
        assert (await operator.finished(experiment))["reason"] == "completed"
        (view,) = (await operator.ok("GET", "/v1/devices"))["items"]
        assert (view["kind"], view["max_clients"], view["accepted"]) == ("edge", 5, 1)

    run(coordinator, story)


ANSWERS: tuple[tuple[Callable[[Task], bytes], str], ...] = (
    (lambda task: accumulator_of(task, 1), "bad_clients"),
    (lambda task: accumulator_of(task, 6), "bad_clients"),
    (lambda task: accumulator_of(task, 2, weight=201), "bad_weight"),
    (lambda task: update(task, 1.0), "wrong_kind"),
    (lambda task: accumulator_of(task, 2, base="ab" * 32), "wrong_base"),
    (lambda task: accumulator_of(task, 2, value=float("nan")), "not_finite"),
    (lambda task: accumulator_of(task, 2, weight=0), "bad_weight"),
)


@pytest.mark.parametrize(("make", "code"), ANSWERS)
def test_an_answer_outside_its_terms_is_refused(coordinator: Opener, make: Callable[[Task], bytes], code: str) -> None:
    async def story(operator: Operator, edge: Device) -> None:
        await operator.experiment(cohort=1, rounds=1)
        task = await edge.task()
        try:
            data = make(task)
        except CoterieError as error:  # the encoder refuses it first
            assert error.reason == code
            return
        answer = await edge.upload(task, data)
        assert (answer.status_code, answer.json()["code"]) == (422, code)

    run(coordinator, story)


def test_a_device_cannot_speak_for_others(coordinator: Opener) -> None:
    async def story(operator: Operator, edge: Device) -> None:
        token = await operator.population()
        device = await Device(operator.http).enrol(token)
        await operator.experiment(cohort=1, rounds=1)
        task = await device.task()
        assert task.edge is None
        answer = await device.upload(task, accumulator_of(task, 2))
        assert (answer.status_code, answer.json()["code"]) == (422, "wrong_kind")

    run(coordinator, story)


async def token_of(operator: Operator, kind: str) -> str:
    """A token with which to join."""
    body = {"kind": kind, "population": "people"} | ({"max_clients": 5} if kind == "edge" else {})
    return (await operator.ok("POST", "/v1/tokens", json=body, headers=once()))["token"]


@pytest.mark.parametrize(("first", "second"), [("enrol", "edge"), ("edge", "enrol")])
@pytest.mark.parametrize("together", [False, True])
def test_a_key_keeps_the_role_that_it_joined_in(
    coordinator: Opener, monkeypatch: pytest.MonkeyPatch, first: str, second: str, together: bool
) -> None:
    """Also where the second comes in between looking whether the key is known and writing it down."""

    async def story(operator: Operator, edge: Device) -> None:
        device = await Device(operator.http).enrol(await token_of(operator, first))
        later = await token_of(operator, second)
        if together:
            asked = iter([None])
            known = devices.by_key

            async def too_early(session: Any, public: str) -> Any:
                return next(asked, await known(session, public))

            monkeypatch.setattr(devices, "by_key", too_early)
        with pytest.raises(AssertionError, match="key_in_use"):
            await Device(operator.http, device.key).enrol(later)

    run(coordinator, story)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"kind": "edge", "population": "people"}, "token_clients"),
        ({"kind": "edge", "max_clients": 5}, "token_population"),
        ({"kind": "edge", "population": "people", "max_clients": 1}, "token_clients"),
        ({"kind": "edge", "population": "people", "max_clients": 3, "min_clients": 4}, "token_clients"),
        ({"kind": "enrol", "population": "people", "max_clients": 3}, "token_clients"),
        ({"kind": "admin", "min_clients": 3}, "token_clients"),
    ],
)
def test_a_token_says_for_how_many_clients_an_edge_may_speak(
    coordinator: Opener, body: dict[str, Any], code: str
) -> None:
    async def story(operator: Operator, edge: Device) -> None:
        answer = await operator.call("POST", "/v1/tokens", json=body, headers=once())
        assert (answer.status_code, answer.json()["code"]) == (422, code)

    run(coordinator, story)


def test_the_audit_says_for_how_many_clients_a_token_lets_an_edge_speak(coordinator: Opener) -> None:
    async def story(operator: Operator, edge: Device) -> None:
        made = await operator.ok("GET", "/v1/audit")
        (entry,) = [entry for entry in made["items"] if entry["data"].get("kind") == "edge"]
        said = entry["data"]
        assert (entry["action"], said["min_clients"], said["max_clients"]) == ("token.created", 2, 5)
        assert "secret" not in str(made) and "coterie_edge_" not in str(made)

    run(coordinator, story)


def test_a_rule_for_single_updates_is_refused_where_there_is_an_edge(coordinator: Opener) -> None:
    async def story(operator: Operator, edge: Device) -> None:
        request = (await operator.request()).model_copy(update={"reducer": "median"})
        body = request.model_dump(mode="json")
        answer = await operator.call("POST", "/v1/experiments", json=body, headers=once())
        assert (answer.status_code, answer.json()["code"]) == (422, "reducer_in_tree")
        await operator.ok("POST", f"/v1/devices/{edge.id}/revoke")
        await operator.ok("POST", "/v1/experiments", json=body, headers=once())

    run(coordinator, story)


def test_an_edge_that_joins_later_gets_no_task_of_such_a_rule(coordinator: Opener) -> None:
    async def story(operator: Operator, edge: Device) -> None:
        token = await operator.population("others")
        request = (await operator.request("others")).model_copy(update={"reducer": "median"})
        await operator.ok("POST", "/v1/experiments", json=request.model_dump(mode="json"), headers=once())
        body = {"kind": "edge", "population": "others", "max_clients": 5}
        later = (await operator.ok("POST", "/v1/tokens", json=body, headers=once()))["token"]
        assert (await (await Device(operator.http).enrol(later)).check_in())["task"] is None
        device = await Device(operator.http).enrol(token)
        assert (await device.check_in())["task"] is not None

    run(coordinator, story)


def test_an_edge_that_joins_later_gets_no_task_whose_sum_is_noised(coordinator: Opener) -> None:
    """A sum of its devices, shortened as one vector, would move by twice what the noise is made for."""

    async def story(operator: Operator, edge: Device) -> None:
        token = await operator.population("others")
        request = await operator.request("others", weight_cap=1)
        privacy = UserLevel(clip=1.0, delta=1e-6, noise_multiplier=1.0)
        body = request.model_copy(update={"privacy": privacy}).model_dump(mode="json")
        await operator.ok("POST", "/v1/experiments", json=body, headers=once())
        asked = {"kind": "edge", "population": "others", "max_clients": 5}
        later = (await operator.ok("POST", "/v1/tokens", json=asked, headers=once()))["token"]
        assert (await (await Device(operator.http).enrol(later)).check_in())["task"] is None
        assert (await (await Device(operator.http).enrol(token)).check_in())["task"] is not None

    run(coordinator, story)


def test_what_is_over_is_told_to_who_asks(coordinator: Opener) -> None:
    async def story(operator: Operator, edge: Device) -> None:
        going, over = await operator.experiment(), await operator.experiment()
        await operator.ok("POST", f"/v1/experiments/{over}/stop")
        unknown = "exp_" + "0" * 32
        body = f'{{"experiments":["{going}","{over}","{unknown}"]}}'.encode()
        answer = await edge.send("POST", "/v1/device/check-in", body)
        assert answer.json()["ended"] == [over, unknown]

    run(coordinator, story)


def terms(**changes: Any) -> EdgeTerms:
    fields = {"reducer": "mean", "min_clients": 2, "max_clients": 100, "deadline_ms": 10_000}
    fields |= {"selection": "uniform", "min_examples": None, "labels": (), "rest_rounds": 0, "rest_s": 0.0}
    return EdgeTerms.model_validate(fields | changes)


def a_task(asked: EdgeTerms, kind: str = "train") -> Task:
    return Task.model_construct(kind=kind, edge=asked, lease_ms=1000)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_both_sides_bound_a_round_of_an_edge(kind: str) -> None:
    mine = Settings(edge_cohort=10, edge_min_clients=5, edge_deadline_s=patience(60.0))
    config = local_config(mine, a_task(terms(), kind), terms(), nested=False)
    seconds = config.deadline_s if kind == "train" else config.evaluation_deadline_s
    assert (config.cohort, config.min_updates, seconds) == (10, 5, 8.0)
    assert config.evaluate_only == (kind == "evaluate")
    wide = local_config(mine, a_task(terms(min_clients=20), kind), terms(min_clients=20), nested=False)
    assert (wide.cohort, wide.min_updates) == (20, 20)
    small = local_config(mine, a_task(terms(max_clients=7), kind), terms(max_clients=7), nested=False)
    assert small.cohort == 7
    deep = local_config(mine, a_task(terms(min_clients=20), kind), terms(min_clients=20), nested=True)
    assert (deep.cohort, deep.min_updates, needed(mine, terms(min_clients=20))) == (10, 1, 20)


def test_an_edge_without_a_token_does_not_start(tmp_path: Path) -> None:
    settings = Settings(folder=prepare(tmp_path / "state"), upstream="http://127.0.0.1:1", prestart=False)

    async def open_it() -> None:
        async with open_coordinator(settings, CoordinatorFaults()):
            pass

    with pytest.raises(ConfigurationError) as caught:
        asyncio.run(open_it())
    assert caught.value.reason == "token_missing"


WRONG_TOKENS = ((new_token("enrol").text, "token_kind"), ("not-a-token", "unauthenticated"))


@pytest.mark.parametrize(("token", "code"), WRONG_TOKENS, ids=("enrol", "rubbish"))
def test_an_edge_does_not_join_with_a_token_of_another_kind(tmp_path: Path, token: str, code: str) -> None:
    """It would be pinned as a device, for good, of which no accumulator is taken."""
    above = {"upstream": "http://127.0.0.1:1", "upstream_token": token}
    settings = Settings.model_validate({"folder": prepare(tmp_path / "state"), "prestart": False, **above})

    async def open_it() -> None:
        async with open_coordinator(settings, CoordinatorFaults()):
            pass

    with pytest.raises(CoterieError) as caught:
        asyncio.run(open_it())
    assert caught.value.reason == code
    assert token not in str(caught.value)
