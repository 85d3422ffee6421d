"""The agent against a real coordinator's application, in this process."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sdk_kit import RESEARCHER, SCHEMA, Lab, counting, experiment, hear, lab, rows

from coterie.aggregation.experiment import Experiment, ExternalModel
from coterie.aggregation.plan.compile import compile_plan
from coterie.client_sdk.device.agent import Agent
from coterie.client_sdk.device.backoff import Backoff
from coterie.client_sdk.device.policy import DevicePolicy, memory_needed
from coterie.client_sdk.device.trainers.external import ExternalTrainer, FitResult, FitTask, Params
from coterie.errors import ConfigurationError, DataError, InputError, StorageError, Unreachable
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.signing import SigningKey

Events = list[dict[str, Any]]


def run(work: Callable[[Lab], Any], folder: Path, wrap: Callable[[Any], Any] = lambda app: app) -> Any:
    async def inside() -> Any:
        async with lab(folder, wrap) as place, asyncio.timeout(60):
            return await work(place)

    return asyncio.run(inside())


def kinds(events: Events) -> list[str]:
    return [event["event"] for event in events if event["event"] != "waiting"]


def test_several_devices_train_and_evaluate_a_model_that_learns(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=3, cohort=3, evaluate_every=1)
        view = await place.submit(experiment("learn", rounds=policy, epochs=4))
        agents = [await place.agent("learn", f"d{i}", data=rows(60, i)) for i in range(3)]
        tasks = [asyncio.create_task(agent.run(rounds=3)) for agent in agents]
        summaries = await asyncio.gather(*tasks)
        history = await place.control.history(view.id)
        assert [(r.state, r.accepted) for r in history.rounds] == [("committed", 3)] * 3
        accuracy = [value for _, value in history.curve("accuracy")]
        assert accuracy[-1] > 0.9 and history.reason == "completed"
        for summary in summaries:
            assert (summary.trained, summary.counted, summary.failed) == (3, 3, 0)
            assert summary.bytes_up > 0 and summary.bytes_down > 0

    run(work, tmp_path)


def test_client_state_is_rolled_back_when_the_round_is_abandoned(tmp_path: Path) -> None:
    """One update of the two that the round needs: the round is abandoned, and the update has not counted."""

    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=1, cohort=2, min_updates=2, deadline_s=1.0, evaluate_every=0)
        view = await place.submit(experiment("lonely", rounds=policy, algorithm=counting()))
        agent = await place.agent("lonely")
        summary = await agent.run(rounds=1)
        assert (summary.counted, summary.rolled_back) == (0, 1)
        assert agent.store.client_state(view.id) == {}
        assert (await place.control.history(view.id)).rounds[0].cause == "too_few_updates"

    run(work, tmp_path)


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


def test_without_a_token_the_first_time_says_what_is_missing(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        await place.submit(experiment("closed"))
        agent = await place.agent("closed", token=None)
        with pytest.raises(ConfigurationError) as caught:
            await agent.join()
        assert caught.value.reason == "token_missing"

    run(work, tmp_path)


def test_a_plan_of_a_key_that_was_not_pinned_is_refused_until_the_device_joins_anew(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        await place.control.ensure_population("trust", SCHEMA)
        events: Events = []
        agent = await place.agent("trust", on_event=hear(events))
        await agent.join()
        await place.submit(experiment("trust"), SigningKey.from_seed(b"n" * 32))
        await agent.cycle()
        assert [event["code"] for event in events if event["event"] == "refused"] == ["signer_refused"]
        await agent.close()
        place.agents.clear()
        again = await place.agent("trust")
        assert (await again.run(rounds=1)).counted == 1

    run(work, tmp_path)


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (DevicePolicy(signers=frozenset()), "signer_refused"),
        (DevicePolicy(memory_bytes=100), "memory_refused"),
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


def test_weight_and_steps_are_capped_by_the_device(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        await place.submit(experiment("caps", epochs=3))
        agent = await place.agent("caps", policy=DevicePolicy(max_weight=5, max_steps=2))
        await agent.cycle()
        (entry,) = agent.store.history()
        assert (entry.weight, entry.steps) == (5, 2)

    run(work, tmp_path)


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


class Recorder:
    """Keeps the bodies of the requests to a path."""

    def __init__(self, app: Any, part: str, bodies: list[bytes]) -> None:
        self.app, self.part, self.bodies = app, part, bodies

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def listen() -> Any:
            message = await receive()
            if self.part in scope["path"] and message.get("body"):
                self.bodies.append(message["body"])
            return message

        await self.app(scope, listen, send)


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


def external(name: str) -> Experiment:
    policy = RoundPolicy(rounds=1, cohort=1, evaluate_every=0)
    return Experiment(name=name, model=ExternalModel({"w": (4, 3)}), schema=SCHEMA, rounds=policy)


def test_a_trainer_of_ones_own_takes_part_over_http(tmp_path: Path) -> None:
    def fit(params: Params, task: FitTask) -> FitResult:
        return {"w": params["w"] + 1}, len(task.rows["y"]), 1, {"loss": 0.5}

    async def work(place: Lab) -> None:
        view = await place.submit(external("own"))
        agent = await place.agent("own", trainer=ExternalTrainer(fit))
        assert (await agent.run(rounds=1)).counted == 1
        record = (await place.control.history(view.id)).rounds[0]
        assert record.state == "committed"

    run(work, tmp_path)


def test_a_trainer_that_fails_gives_the_task_back_and_ends_the_device_the_third_time(tmp_path: Path) -> None:
    def fit(params: Params, task: FitTask) -> FitResult:
        raise ZeroDivisionError("the rows say 42")

    told: list[bytes] = []

    async def work(place: Lab) -> None:
        await place.submit(external("broken"))
        events: Events = []
        agent = await place.agent("broken", trainer=ExternalTrainer(fit), on_event=hear(events))
        with pytest.raises(InputError, match="ZeroDivisionError: the rows say 42"):
            await agent.run()
        assert [event["code"] for event in events if event["event"] == "refused"] == ["trainer_failed"] * 3

    run(work, tmp_path, lambda app: Recorder(app, "/abort", told))
    assert len(told) == 3 and all(b"trainer_failed" in body and b"42" not in body for body in told)


def test_a_dry_run_shows_what_would_leave_and_gives_the_task_back(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        view = await place.submit(experiment("dry", codecs=("int8",)))
        agent = await place.agent("dry")
        shown = await agent.dry_run()
        assert shown.experiment == view.id and shown.round == 1 and shown.examples == 40
        assert [(s.name, s.codec) for s in shown.sections] == [("delta", "int8"), ("metrics", "float32")]
        delta = shown.sections[0]
        assert delta.values == 67 and delta.bytes < 4 * 67 and delta.minimum < delta.maximum and delta.norm > 0
        assert shown.total_bytes > sum(section.bytes for section in shown.sections)
        assert 0 < shown.metrics["loss"] < 5 and json.dumps(shown.to_json())
        rounds = await place.control.rounds(view.id)
        assert rounds[0].accepted == 0 and agent.store.history() == []
        # The slot is free again for the same device.
        assert (await agent.run(rounds=1)).counted == 1

    run(work, tmp_path)


def test_a_dry_run_without_a_task_says_so(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        await place.control.ensure_population("idle", SCHEMA)
        shown = await (await place.agent("idle")).dry_run()
        assert shown.experiment is None and shown.sections == () and "no task" in shown.note

    run(work, tmp_path)


def test_an_unreachable_coordinator_is_waited_out_with_growing_waits(tmp_path: Path) -> None:
    async def work() -> None:
        from coterie.client_sdk.device.settings import AgentSettings

        events: Events = []

        def listen(event: Any) -> None:
            events.append(dict(event))
            if kinds(events).count("error") == 4:
                agent.stop()

        settings = AgentSettings(
            url="http://127.0.0.1:9",
            data=rows(),
            folder=tmp_path,
            token="coterie_enrol_x_y",
            backoff=Backoff(base_s=0.01, cap_s=0.05),
            on_event=listen,
        )
        agent = Agent(settings)
        async with asyncio.timeout(20):
            summary = await agent.run()
        await agent.close()
        assert summary.trained == 0
        assert kinds(events) == ["error"] * 4 + ["stopped"]
        assert all(event["code"] == "unreachable" for event in events if event["event"] == "error")
        assert all(0 <= event["seconds"] <= 0.05 for event in events if event["event"] == "waiting")

    asyncio.run(work())


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, chunks: object, *, mode: int = 0o644) -> None:
        raise StorageError(f"Cannot use {path}: No space left on device.", hint="Free space on that disk.")

    async def work(place: Lab) -> None:
        await place.submit(experiment("full", algorithm=counting()))
        agent = await place.agent("full")
        with monkeypatch.context() as patch:
            patch.setattr("coterie.client_sdk.device.store.write_durably", full)
            with pytest.raises(StorageError, match="No space left"):
                await agent.run()
        await agent.close()
        place.agents.clear()
        again = await place.agent("full")
        assert (await again.run(rounds=2)).counted == 2
        assert [entry.state for entry in again.store.history()] == ["counted", "counted"]

    run(work, tmp_path)


def test_a_stored_update_that_was_damaged_is_not_sent(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        view = await place.submit(experiment("rotten"))
        events: Events = []
        agent = await place.agent("rotten", on_event=hear(events))

        async def broken(*_: Any, **__: Any) -> None:
            raise Unreachable("Not now.")

        with pytest.MonkeyPatch.context() as patch, pytest.raises(Unreachable):
            patch.setattr("coterie.client_sdk.device.runner.upload", broken)
            await agent.cycle()
        found = agent.store.in_flight()
        assert found is not None and found.state == "stored"
        path = agent.store.update_path(found.task)
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        await agent.cycle()
        assert [event["code"] for event in events if event["event"] == "refused"] == ["update_damaged"]
        assert (await place.control.rounds(view.id))[0].accepted == 0

    run(work, tmp_path)


def test_a_stopped_device_gives_its_task_back_after_the_current_step(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        view = await place.submit(experiment("stopped", epochs=1_000_000))
        agent = await place.agent("stopped")
        running = asyncio.create_task(agent.run())
        while agent.store.in_flight() is None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        agent.stop()
        summary = await asyncio.wait_for(running, 10)
        assert summary.trained == 0 and summary.failed == 1
        assert agent.store.history()[0].detail.startswith("stopped")
        rounds = await place.control.rounds(view.id)
        assert rounds[0].failed == 1

    run(work, tmp_path)


def test_a_task_that_the_coordinator_closes_ends_the_training(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=1, cohort=1, evaluate_every=0, lease_s=1.5)
        view = await place.submit(experiment("closing", epochs=1_000_000, rounds=policy))
        events: Events = []
        agent = await place.agent("closing", on_event=hear(events))
        running = asyncio.create_task(agent.cycle())
        while agent.store.in_flight() is None:
            await asyncio.sleep(0.01)
        await place.control.stop(view.id)
        await asyncio.wait_for(running, 20)
        assert [event["code"] for event in events if event["event"] == "refused"] == ["task_finished"]

    run(work, tmp_path)


def test_a_revoked_device_stops_with_a_hint(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        await place.control.ensure_population("revoked", SCHEMA, signers=(RESEARCHER.public,))
        agent = await place.agent("revoked")
        membership = await agent.join()
        await place.control.link.json("POST", f"/v1/devices/{membership.device_id}/revoke")
        with pytest.raises(ConfigurationError) as caught:
            await agent.run()
        assert caught.value.reason == "device_revoked" and caught.value.hint

    run(work, tmp_path)


def test_a_folder_of_another_population_is_not_mixed_up(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        for name in ("one", "two"):
            await place.control.ensure_population(name, SCHEMA)
        agent = await place.agent("one", "shared")
        await agent.join()
        await agent.close()
        place.agents.clear()
        with pytest.raises(ConfigurationError) as caught:
            await (await place.agent("two", "shared")).join()
        assert caught.value.reason == "other_membership"

    run(work, tmp_path)
