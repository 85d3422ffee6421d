"""Real devices that hide their rows from a real coordinator: rounds commit, and devices refuse what is not kept."""

import asyncio
from pathlib import Path
from typing import Any

from sdk_kit import Events, Lab, experiment, hear, kinds, rows, run

from coterie.client_sdk.device.policy import DevicePolicy
from coterie.privacy.dp.privacy import ExampleLevel
from coterie.protocol.rounds import RoundPolicy

CLIENTS = 3
LEVEL = ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, rows=40)
TAKEN = DevicePolicy(max_epsilon=50.0, trusts=frozenset({"device"}), units=frozenset({"example"}))


def test_rounds_of_private_steps_spend_what_they_claim(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=2, cohort=CLIENTS, weight_cap=1, evaluate_every=0)
        wanted = experiment("own", rounds=policy, privacy=LEVEL, max_steps=5)
        view = await place.submit(wanted)
        agents: list[Any] = []
        events: list[Events] = []
        for number in range(CLIENTS):
            heard: Events = []
            events.append(heard)
            agents.append(
                await place.agent("own", f"d{number}", data=rows(60, number), policy=TAKEN, on_event=hear(heard))
            )
        await asyncio.gather(*(agent.run(rounds=2) for agent in agents))
        history = await place.control.history(view.id)
        assert [(record.state, record.accepted) for record in history.rounds] == [("committed", CLIENTS)] * 2
        assert [dict(record.training) for record in history.rounds] == [{}, {}]
        assert all("uploaded" in kinds(heard) for heard in events)
        for heard in events:
            assert [event["weight"] for event in heard if event["event"] == "trained"] == [1, 1]
        first, second = (record.epsilon for record in history.rounds)
        assert first is not None and second is not None and 0 < first < second

    run(work, tmp_path)
