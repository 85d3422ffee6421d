"""A device without work: it says why once, and asks less and less often where nothing can come."""

import random
from pathlib import Path

from sdk_kit import SCHEMA, Events, Lab, experiment, hear, run

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.client_sdk.device.idleness import MOST_S, SPREAD, Idleness
from coterie.protocol.rounds import RoundPolicy


def idle(events: Events) -> list[str]:
    return [event["reason"] for event in events if event["event"] == "idle"]


def test_a_device_without_an_experiment_or_without_the_trainer_says_so_once(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        await place.control.ensure_population("quiet", SCHEMA)
        events: Events = []
        agent = await place.agent("quiet", on_event=hear(events))
        for _ in range(3):
            await agent.cycle()
        assert idle(events) == ["no_experiment"]
        policy = RoundPolicy(rounds=1, cohort=1, evaluate_every=0)
        wanted = Experiment(name="quiet", model=ExternalModel({"w": (4, 3)}), schema=SCHEMA, rounds=policy)
        view = await place.submit(wanted)
        for _ in range(3):
            await agent.cycle()
        assert idle(events) == ["no_experiment", "trainer_own"]
        await place.control.stop(view.id)
        await place.submit(experiment("quiet"))
        assert (await agent.run(rounds=1)).counted == 1

    run(work, tmp_path)


def test_where_nothing_can_come_the_pause_grows_with_the_silence_to_a_minute() -> None:
    generator, idleness, now, asked = random.Random(1), Idleness(), 0.0, [0.0]
    while now < 3600:
        idleness.news("no_experiment", now)
        now += idleness.pause(0.5, now, generator)
        asked.append(now)
    gaps = [after - before for before, after in zip(asked, asked[1:], strict=False)]
    assert gaps[0] == 0.5 and max(gaps) <= MOST_S * SPREAD
    assert all(gap >= MOST_S for gap in gaps[12:]) and len(asked) < 75
    # Nobody who has just started a client waits for it for long: never longer than it has been idle, and a little.
    assert all(gap <= max(0.5, before * SPREAD) for gap, before in zip(gaps, asked, strict=False))


def test_a_device_that_only_waits_for_its_place_keeps_the_coordinators_pace() -> None:
    generator, idleness = random.Random(1), Idleness()
    told = [idleness.news("no_place", now) for now in (0.0, 2.0, 6.0, 7.0)]
    assert told == [False, False, True, False]
    assert idleness.pause(0.5, 100.0, generator) == 0.5
    idleness.over()
    assert not idleness.news("no_place", 200.0)
