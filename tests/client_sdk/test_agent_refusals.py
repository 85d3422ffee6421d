"""What a device refuses: data, plans, tasks and blobs that are not what they should be, and more than it gives."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sdk_kit import SCHEMA, Events, Lab, Recorder, experiment, hear, kinds, rows, run

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.stage import TaskName
from coterie.aggregation.report.hints import hints
from coterie.client_sdk.device.agent import Agent
from coterie.client_sdk.device.policy import DevicePolicy, memory_needed
from coterie.client_sdk.device.runner import MOST_FAILURES
from coterie.client_sdk.device.settings import AgentSettings
from coterie.client_sdk.device.trainers.base import LocalResult, LocalWork
from coterie.client_sdk.device.trainers.external import ExternalTrainer
from coterie.compute.optim import sgd
from coterie.errors import ConfigurationError, DataError
from coterie.protocol.metrics import MetricSums
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.signing import SigningKey
from tests.held_clock import held


def test_data_is_checked_before_the_coordinator_hears_of_the_device(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        await place.submit(experiment("checked"))
        bad = rows()
        bad["x"][6, 2] = np.nan
        agent = await place.agent("checked", data=bad)
        with pytest.raises(DataError, match="row 7"):
            await agent.run()
        assert await place.control.devices("checked") == [] and agent.store.membership() is None

    run(work, tmp_path)


@pytest.mark.parametrize(("rows_with_flu", "code"), [(0, "data_empty"), (1, "no_held_out_rows")])
def test_nobody_is_told_that_no_row_has_a_class(rows_with_flu: int, code: str, tmp_path: Path) -> None:
    """A plan that asks for the class "flu" must not learn from a refusal that this device has no such row."""
    flu = Label(name="ill", classes=("flu", "gout"), others="dropped")
    ill = Feature(name="ill", dtype="uint8", shape=(63,), encoding="utf-8")
    declared = DataSchema((*SCHEMA.features, ill), Label(name="unlabelled", constant=0))
    finer = DataSchema(SCHEMA.features, flu)
    data = {"x": rows()["x"], "ill": np.array(["flu"] * rows_with_flu + ["cold"] * (40 - rows_with_flu))}
    told: list[bytes] = []

    async def work(place: Lab) -> None:
        await place.control.ensure_population("ward", declared)
        policy = RoundPolicy(rounds=1, cohort=1, evaluate_every=1)
        await place.submit(experiment("ward", schema=finer, rounds=policy))
        events: Events = []
        agent = await place.agent("ward", data=data, on_event=hear(events))
        while "refused" not in kinds(events):
            await agent.cycle()
        refused = next(event for event in events if event["event"] == "refused")
        assert refused["code"] == code

    run(work, tmp_path, lambda app: Recorder(app, "/abort", told))
    assert told == []


def test_without_a_token_the_first_time_says_what_is_missing(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        await place.submit(experiment("closed"))
        agent = await place.agent("closed", token=None)
        with pytest.raises(ConfigurationError) as caught:
            await agent.join()
        assert caught.value.reason == "token_missing"

    run(work, tmp_path)


def test_a_token_of_an_edge_aggregator_makes_no_device(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        await place.submit(experiment("closed"))
        token = (await place.control.edge_token("closed", max_clients=5)).token
        agent = await place.agent("closed", token=token)
        with pytest.raises(ConfigurationError) as caught:
            await agent.join()
        assert caught.value.reason == "token_kind"
        assert await place.control.devices("closed") == []

    run(work, tmp_path)


def test_a_device_pins_the_first_signers_that_its_population_names_and_no_other(tmp_path: Path) -> None:
    new = SigningKey.from_seed(b"n" * 32)

    async def work(place: Lab) -> None:
        await place.control.ensure_population("trust", SCHEMA)
        events: Events = []
        agent = await place.agent("trust", on_event=hear(events))
        await agent.join()
        first = await place.submit(experiment("trust"))
        assert (await agent.run(rounds=1)).counted == 1
        await agent.close()
        place.agents.clear()
        await place.control.stop(first.id)
        await place.submit(experiment("trust"), new)
        again = await place.agent("trust", on_event=hear(events))
        await again.cycle()
        assert [event["code"] for event in events if event["event"] == "refused"] == ["signer_refused"]
        await again.close()
        place.agents.clear()
        told = next(event["hint"] for event in events if event["event"] == "refused")
        line = json.loads(told.partition("signers = ")[2])
        assert new.public in line
        trusting = await place.agent("trust", policy=DevicePolicy(signers=frozenset(line)))
        assert (await trusting.run(rounds=1)).counted == 1

    run(work, tmp_path)


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (DevicePolicy(signers=frozenset()), "signer_refused"),
        (DevicePolicy(memory_bytes=100), "memory_refused"),
        (DevicePolicy(min_cohort=20), "secure_aggregation_required"),
        (DevicePolicy(max_upload_bytes=100), "upload_too_large"),
        (DevicePolicy(max_download_bytes=100), "download_too_large"),
    ],
)
def test_the_devices_own_policy_holds_whatever_the_coordinator_asks(
    tmp_path: Path, policy: DevicePolicy, code: str
) -> None:
    async def work(place: Lab) -> None:
        view = await place.submit(experiment("policy"))
        events: Events = []
        agent = await place.agent("policy", policy=policy, on_event=hear(events))
        await agent.cycle()
        refused = [event for event in events if event["event"] == "refused"]
        assert [event["code"] for event in refused] == [code] and refused[0]["message"]
        rounds = await place.control.rounds(view.id)
        assert rounds[0].accepted == 0 and rounds[0].failed == 1

    run(work, tmp_path)


def test_tasks_that_the_policy_refuses_do_not_end_the_device(tmp_path: Path) -> None:
    """Else one experiment that nobody may take part in would end all clients of a population."""

    async def work(place: Lab) -> None:
        await place.submit(experiment("policy"))
        events: Events = []
        agent = await place.agent("policy", policy=DevicePolicy(max_upload_bytes=100), on_event=hear(events))
        for _ in range(3):
            await agent.cycle()
        refused = [event["code"] for event in events if event["event"] == "refused"]
        assert refused == ["upload_too_large"] * 3

    run(work, tmp_path)


def test_training_that_diverges_ends_no_device_and_is_said_by_its_round(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=2, cohort=1, evaluate_every=0, deadline_s=1.0)
        view = await place.submit(experiment("diverging", optimizer=sgd(1e30), rounds=policy))
        events: Events = []
        agent = await place.agent("diverging", on_event=hear(events))
        for most in (MOST_FAILURES, MOST_FAILURES + 1):
            while kinds(events).count("refused") < most:
                await asyncio.sleep(await agent.cycle())
            clock.forward(1.1)  # the round's deadline passes
        while not (await place.control.history(view.id)).rounds:
            await asyncio.sleep(0.02)
        refused = [event for event in events if event["event"] == "refused"]
        assert {event["code"] for event in refused} == {"training_diverged"}
        assert "diverged in round 1; lower the learning rate" in refused[0]["message"]
        history = await place.control.history(view.id)
        assert history.rounds[0].state == "abandoned" and history.rounds[0].diverged > 0
        assert any("Training diverged in round 1; lower the learning rate" in hint for hint in hints(history))

    with held() as clock:
        run(work, tmp_path)


def test_weight_and_steps_are_capped_by_the_device(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        await place.submit(experiment("caps", epochs=3))
        agent = await place.agent("caps", policy=DevicePolicy(max_weight=5, max_steps=2))
        await agent.cycle()
        (entry,) = agent.store.history()
        assert (entry.weight, entry.steps) == (5, 2)

    run(work, tmp_path)


class Boastful:
    """A trainer of the owner's that knows of no caps: it claims a million rows."""

    def check(self, plan: Plan, task: TaskName, threads: int = 1) -> None:
        pass

    def train(self, work: LocalWork) -> LocalResult:
        made = ExternalTrainer(lambda params, task: (params, 1, 1, {"loss": 0.5})).train(work)
        return replace(made, weight=1_000_000)

    def evaluate(self, work: LocalWork) -> MetricSums:
        return MetricSums()


def test_the_claim_of_a_trainer_of_ones_own_is_capped_too(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        rounds = RoundPolicy(rounds=1, cohort=1, evaluate_every=0)
        await place.submit(Experiment(name="caps", model=ExternalModel({"w": (4, 3)}), schema=SCHEMA, rounds=rounds))
        agent = await place.agent("caps", policy=DevicePolicy(max_weight=5), trainer=Boastful())
        await agent.cycle()
        (entry,) = agent.store.history()
        assert entry.weight == 5

    run(work, tmp_path)


def test_a_provider_that_a_trainer_of_ones_own_would_pass_by_is_refused(tmp_path: Path) -> None:
    policy = DevicePolicy(provider="openvino")
    settings = AgentSettings(url="http://coordinator", folder=tmp_path, data=rows(), policy=policy, trainer=Boastful())
    with pytest.raises(ConfigurationError, match="'openvino', but your own trainer") as caught:
        Agent(settings)
    assert caught.value.reason == "policy_conflict"


def test_memory_is_counted_from_the_plan() -> None:
    plan = compile_plan(experiment()).plan
    parameters = 4 * (4 * 8 + 8 + 8 * 3 + 3)
    assert memory_needed(plan) >= 5 * parameters
    DevicePolicy(memory_bytes=memory_needed(plan)).check_plan(plan)


class Tamper:
    """Changes answers on their way: path fragment → bytes to other bytes."""

    def __init__(self, app: Any, part: str, change: Callable[[bytes], bytes]) -> None:
        self.app, self.part, self.change = app, part, change

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.part not in scope["path"]:
            await self.app(scope, receive, send)
            return
        # Compressed bytes would hide what is to be changed.
        scope = {**scope, "headers": [(k, v) for k, v in scope["headers"] if k != b"accept-encoding"]}
        start: list[Any] = []
        body: list[bytes] = []

        async def collect(message: Any) -> None:
            if message["type"] == "http.response.start":
                start.append(message)
                return
            body.append(message.get("body", b""))
            if not message.get("more_body"):
                data = self.change(b"".join(body))
                headers = [(k, v) for k, v in start[0]["headers"] if k.lower() != b"content-length"]
                await send({**start[0], "headers": [*headers, (b"content-length", str(len(data)).encode())]})
                await send({"type": "http.response.body", "body": data})

        await self.app(scope, receive, collect)


def test_a_task_that_the_pinned_coordinator_did_not_sign_is_refused(tmp_path: Path) -> None:
    def raise_cap(data: bytes) -> bytes:
        answer = json.loads(data)
        if answer.get("task"):
            answer["task"]["hyper"] = {"lr": 1e9}
        return json.dumps(answer).encode()

    async def work(place: Lab) -> None:
        await place.submit(experiment("forged"))
        events: Events = []
        agent = await place.agent("forged", on_event=hear(events))
        await agent.cycle()
        assert [event["code"] for event in events if event["event"] == "refused"] == ["signature_invalid"]
        assert agent.store.history()[0].state == "failed"

    run(work, tmp_path, lambda app: Tamper(app, "/check-in", raise_cap))


def test_blobs_changed_on_the_way_are_noticed(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        await place.submit(experiment("damaged"))
        events: Events = []
        agent = await place.agent("damaged", on_event=hear(events))
        await agent.cycle()
        assert [event["code"] for event in events if event["event"] == "refused"] == ["digest_mismatch"]

    def flip(data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1])

    run(work, tmp_path, lambda app: Tamper(app, "/v1/blobs/", lambda data: flip(data) if data[:1] == b"{" else data))
