"""Real devices under secure aggregation on a real coordinator in this process: rounds, evaluations, refusals."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from sdk_kit import Events, Lab, counting, experiment, hear, kinds, rows, run

from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.saved import UPLOAD, VECTOR
from coterie.protocol.conversion import to_json
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secure_aggregation import SecureAggregation

CLIENTS = 5


async def members(place: Lab, population: str, events: list[Events], **changes: Any) -> list[Any]:
    made: list[Any] = []
    for number in range(CLIENTS):
        heard: Events = []
        events.append(heard)
        made.append(await place.agent(population, f"d{number}", data=rows(60, number), on_event=hear(heard), **changes))
    return made


@pytest.mark.parametrize("mode", ["semi_honest", "consistent"])
def test_devices_train_a_model_that_learns_and_nobody_sees_an_update(tmp_path: Path, mode: str) -> None:
    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=3, cohort=CLIENTS, evaluate_every=0)
        secure = SecureAggregation(mode=mode, dropout=0.2)  # pyright: ignore[reportArgumentType]
        keeping = mode == "semi_honest"
        method = {"algorithm": counting()} if keeping else {}
        wanted = experiment("secret", rounds=policy, epochs=4, secure_aggregation=secure, **method)
        view = await place.submit(wanted)
        events: list[Events] = []
        agents = await members(place, "secret", events)
        await asyncio.gather(*(agent.run(rounds=3) for agent in agents))
        history = await place.control.history(view.id)
        assert [(r.state, r.accepted) for r in history.rounds] == [("committed", CLIENTS)] * 3
        for agent, heard in zip(agents, events, strict=True):
            assert "uploaded" in kinds(heard) and "attempt" in kinds(heard)
            entries = agent.store.history()
            assert [entry.state for entry in entries] == ["counted"] * 3
            assert all(entry.survivors == entry.clients == CLIENTS and entry.mode == mode for entry in entries)
            assert not keeping or float(agent.store.client_state(view.id)["counted"][0]) == 3.0
            assert json.dumps([to_json(entry) for entry in entries])

    run(work, tmp_path)


def test_evaluations_by_devices_are_summed_in_secret(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=1, cohort=CLIENTS, evaluate_every=1)
        secure = SecureAggregation(dropout=0.2)
        view = await place.submit(experiment("scored", rounds=policy, epochs=4, secure_aggregation=secure, holdout=0.3))
        events: list[Events] = []
        agents = await members(place, "scored", events)
        await asyncio.gather(*(agent.run(rounds=1) for agent in agents))
        history = await place.control.history(view.id)
        assert [value for _, value in history.curve("accuracy")][0] > 0.5
        entries = [entry for agent in agents for entry in agent.store.history() if entry.kind == "evaluate"]
        assert entries and all(entry.state == "reported" and entry.sent[-1] == "reveal" for entry in entries)

    run(work, tmp_path)


def test_a_dry_run_shows_the_vector_before_it_is_masked(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=1, cohort=CLIENTS, evaluate_every=0)
        await place.submit(experiment("dry", rounds=policy, secure_aggregation=SecureAggregation(dropout=0.2)))
        agent = await place.agent("dry")
        shown = await agent.dry_run(tmp_path / "saved")
        assert (shown.secure, shown.min_clients, shown.clipped) == ("semi_honest", CLIENTS, False)
        assert [section.name for section in shown.sections] == ["counts", "delta", "metrics"]
        counts, delta, _ = shown.sections
        assert counts.codec.startswith("exact") and counts.maximum == shown.weight
        assert delta.codec.startswith("grid") and delta.minimum < 0 < delta.maximum and delta.norm > 0
        assert shown.total_bytes == sum(section.bytes for section in shown.sections)
        assert "masks" in shown.note and json.dumps(to_json(shown))
        assert not (tmp_path / "saved" / UPLOAD).exists()
        words = sum(section.values for section in shown.sections)
        assert len((tmp_path / "saved" / VECTOR).read_bytes()) == 4 * words
        assert agent.store.history() == []

    run(work, tmp_path)


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (DevicePolicy(min_cohort=6), "cohort_too_small"),
        (DevicePolicy(min_cohort=3, modes=frozenset(("consistent",))), "mode_refused"),
        (DevicePolicy(min_cohort=3, max_epsilon=1.0), "privacy_missing"),
    ],
)
def test_a_task_below_the_floor_is_given_back_before_anything_is_downloaded(
    tmp_path: Path, policy: DevicePolicy, code: str
) -> None:
    async def work(place: Lab) -> None:
        rounds = RoundPolicy(rounds=1, cohort=CLIENTS, evaluate_every=0)
        await place.submit(experiment("floor", rounds=rounds, secure_aggregation=SecureAggregation(dropout=0.2)))
        heard: Events = []
        agent = await place.agent("floor", policy=policy, on_event=hear(heard))
        await agent.cycle()
        refused = next(event for event in heard if event["event"] == "refused")
        assert refused["code"] == code
        assert list(agent.store.cache.iterdir()) == []

    run(work, tmp_path)
