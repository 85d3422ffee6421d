"""The agent against a real coordinator's application, in this process."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sdk_kit import RESEARCHER, SCHEMA, Events, Lab, Recorder, counting, experiment, hear, kinds, rows, run
from sqlalchemy import update as change

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.client_sdk.device.agent import Agent
from coterie.client_sdk.device.backoff import Backoff
from coterie.client_sdk.device.saved import CHECK_IN, SUMMARY, UPLOAD
from coterie.client_sdk.device.trainers.external import ExternalTrainer, FitResult, FitTask, Params
from coterie.compute.nn.zoo import mlp
from coterie.errors import ConfigurationError, InputError, StorageError, Unreachable
from coterie.protocol.conversion import to_json
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.tensors import decode_tensors
from coterie.protocol.update import read_update
from coterie.server.store import experiments
from coterie.server.store.tables import RoundRow
from tests.held_clock import held
from tests.patience import patience


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_several_devices_train_and_evaluate_a_model_that_learns(tmp_path: Path, precision: str) -> None:
    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=3, cohort=3, evaluate_every=1)
        view = await place.submit(experiment("learn", rounds=policy, epochs=4, precision=precision))
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


@pytest.mark.capability("E17")
def test_all_tensors_leave_in_one_message_a_round(tmp_path: Path) -> None:
    """Six tensors are one flat delta: one upload for each client and round, its bytes those of the numbers and a small
    head, and the round's record counts them.
    """
    bodies: list[bytes] = []
    model, policy = mlp((4, 16, 8, 3)), RoundPolicy(rounds=2, cohort=2, evaluate_every=0)
    wanted = experiment("flat", model=model, rounds=policy)

    async def work(place: Lab) -> None:
        view = await place.submit(wanted)
        agents = [await place.agent("flat", f"d{i}", data=rows(40, i)) for i in range(2)]
        await asyncio.gather(*(agent.run(rounds=2) for agent in agents))
        records = (await place.control.history(view.id)).rounds
        assert [record.accepted for record in records] == [2, 2]
        assert sum(record.bytes_up for record in records) == sum(map(len, bodies))

    run(work, tmp_path, lambda app: Recorder(app, "/update", bodies))
    sections = compile_plan(wanted).plan.manifest.sections
    sums = sections[-1].length
    assert len(model.specs()) == 6 and len(bodies) == 2 * 2
    for body in bodies:
        update = read_update(body, sections)
        assert update.decode("delta").shape == (model.count(),) and update.decode("metrics").shape == (sums,)
        assert 4 * (model.count() + sums) <= len(body) < 4 * (model.count() + sums) + 2048


def test_client_state_is_rolled_back_when_the_round_is_abandoned(tmp_path: Path) -> None:
    """One update of the two that the round needs: the round is abandoned, and the update has not counted."""
    applications: list[Any] = []

    def keep(app: Any) -> Any:
        applications.append(app)
        return app

    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=1, cohort=2, min_updates=2, evaluate_every=0)
        view = await place.submit(experiment("lonely", rounds=policy, algorithm=counting()))
        agent = await place.agent("lonely")
        running = asyncio.create_task(agent.run(rounds=1))
        # However long training takes here, the deadline comes after the update and never before it.
        while not agent.store.pending():
            await asyncio.sleep(0.01)
        async with applications[0].state.coordinator.storage.database.write("deadline") as session:
            await experiments.lock(session, view.id)
            await session.execute(change(RoundRow).values(deadline_at=1))
        summary = await running
        assert (summary.counted, summary.rolled_back) == (0, 1)
        assert agent.store.client_state(view.id) == {}
        (record,) = (await place.control.history(view.id)).rounds
        assert (record.accepted, record.cause) == (1, "too_few_updates")

    run(work, tmp_path, keep)


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


def test_devices_that_train_parts_are_averaged_over_those_that_trained_each_number(tmp_path: Path) -> None:
    """One device trains the first two rows, the other the last three, by a codec that loses nothing of these numbers;
    the coordinator, which hashed the bytes as they came, adds them up as arithmetic by hand says."""

    def rows(low: int, high: int, change: float, weight: int) -> ExternalTrainer:
        def fit(params: Params, task: FitTask) -> FitResult:
            hidden = np.ones((4, 3), np.bool_)
            hidden[low:high] = False
            return {"w": np.ma.masked_array(params["w"] + np.float32(change), hidden)}, weight, 1, {"loss": 0.5}

        return ExternalTrainer(fit)

    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=1, cohort=2, evaluate_every=0)
        model = ExternalModel({"w": (4, 3), "untrained": (2,)})
        start = {"w": np.zeros((4, 3), np.float32), "untrained": np.ones(2, np.float32)}
        view = await place.submit(
            Experiment(name="parts", model=model, initial=start, schema=SCHEMA, rounds=policy, secure_aggregation=False)
        )
        agents = [
            await place.agent("parts", "upper", trainer=rows(0, 2, 4.0, 1)),
            await place.agent("parts", "lower", trainer=rows(1, 4, 8.0, 3)),
        ]
        for summary in await asyncio.gather(*(agent.run(rounds=1) for agent in agents)):
            assert summary.counted == 1
        newest = (await place.control.models(view.id))[-1]
        weights = decode_tensors(await place.control.blob(newest.sha256))
        assert weights["w"].tolist() == [[4.0] * 3, [7.0] * 3, [8.0] * 3, [8.0] * 3]
        assert weights["untrained"].tolist() == [1.0, 1.0]

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
        assert 0 < shown.metrics["loss"] < 5 and json.dumps(to_json(shown))
        rounds = await place.control.rounds(view.id)
        assert rounds[0].accepted == 0 and agent.store.history() == []
        # The slot is free again for the same device.
        assert (await agent.run(rounds=1)).counted == 1

    run(work, tmp_path)


def test_a_dry_run_saves_the_bytes_that_would_leave_and_sends_none(tmp_path: Path) -> None:
    """The saved check-in is the one that was sent; the update that is then uploaded is the one that was saved."""
    asked: list[bytes] = []
    sent: list[bytes] = []
    folder = tmp_path / "saved"

    async def work(place: Lab) -> None:
        await place.submit(experiment("saves"))
        agent = await place.agent("saves")
        shown = await agent.dry_run(folder)
        assert sent == [] and asked == [(folder / CHECK_IN).read_bytes()]
        assert sorted(shown.saved) == sorted(str(path) for path in folder.iterdir())
        assert {path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == {0}
        assert len((folder / UPLOAD).read_bytes()) == shown.total_bytes
        assert json.loads((folder / SUMMARY).read_bytes())["total_bytes"] == shown.total_bytes
        with pytest.raises(InputError, match="replaces nothing"):
            await agent.dry_run(folder)
        # A task that is in flight is shown, stays, and then leaves as it was saved.
        other = await place.agent("saves", "other", trainer=None)
        task = asyncio.create_task(other.run(rounds=1))
        while other.store.in_flight() is None:
            await asyncio.sleep(0)
        other.stop_training()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert other.store.in_flight() is not None and sent == []
        await other.close()
        place.agents.remove(other)
        again = await place.agent("saves", "other")
        await again.dry_run(tmp_path / "in flight")
        assert (await again.run(rounds=1)).counted == 1
        # The next round's may be on its way already.
        assert sent[0] == (tmp_path / "in flight" / UPLOAD).read_bytes()

    run(work, tmp_path, lambda app: Recorder(Recorder(app, "/check-in", asked), "/update", sent))


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
        async with asyncio.timeout(patience(60)):
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
        told: list[Any] = []
        runner = agent._runner  # pyright: ignore[reportPrivateUsage]
        assert runner is not None
        send = runner.requests.json

        async def heard(method: str, target: str, message: object) -> Any:
            told.append((target, message))
            return await send(method, target, message)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner.requests, "json", heard)
            await agent.cycle()
        ((target, abort),) = told
        # Where it lies is the owner's to know.
        assert target.endswith("/abort") and abort["code"] == "update_damaged"
        assert "damaged" in abort["detail"] and str(tmp_path) not in str(abort)
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
        summary = await asyncio.wait_for(running, patience(60))
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
        with held():  # its lease does not end
            running = asyncio.create_task(agent.cycle())
            while agent.store.in_flight() is None:
                await asyncio.sleep(0.01)
            await place.control.stop(view.id)
            await asyncio.wait_for(running, patience(20))
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
