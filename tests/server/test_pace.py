"""Pace steering: the fleet is counted by Little's law, kept at the rate wanted, and herded by nothing."""

import asyncio
from typing import Any, cast

import numpy as np
import pytest
from server_kit import Opener

from coterie.protocol.device import RetryWindow
from coterie.server.clock import now_ms
from coterie.server.fleet import Fleet
from coterie.server.pace import Arrivals, Demand, Pacer, mean_wait, rested, window
from coterie.server.settings import Settings

SETTINGS = Settings(check_in_rate=100.0, retry_floor_s=0.2, retry_idle_s=1.0, retry_ceiling_s=900.0)
WANTED = Demand(open_slots=600, seconds=60.0, yield_=0.5)


@pytest.mark.parametrize(
    ("devices", "demand", "seconds"),
    [
        (1, None, 1.0),  # the floor of an idle fleet
        (1, WANTED, 0.2),  # and of one at work
        (1000, None, 20.0),  # half of a hundred check-ins a second
        (4000, WANTED, 80.0),
        (10_000, WANTED, 500.0),  # 600 slots in a minute, of which half bring something: 20 arrivals a second
        (10_000, Demand(open_slots=300, share=0.25), 500.0),  # of four that ask, one may take a task
        (10_000, Demand(open_slots=60_000), 200.0),  # what is wanted is more than can be borne
        (10_000, Demand(), 900.0),  # nothing is wanted: the ceiling
        (1_000_000, Demand(), 20_000.0),  # unless that is more than can be borne
    ],
)
def test_the_mean_wait(devices: int, demand: Demand | None, seconds: float) -> None:
    assert mean_wait(devices, devices, demand, SETTINGS) == pytest.approx(seconds)


def test_populations_share_what_can_be_borne() -> None:
    assert mean_wait(10, 10_000, WANTED, SETTINGS) == pytest.approx(200.0)


def test_a_small_fleet_comes_back_when_the_next_round_begins() -> None:
    waiting = Demand(open_slots=0, next_round_s=30.0)
    again = window(20, 20, waiting, SETTINGS)
    assert (again.min_ms, again.max_ms) == (24_000, 24_400)
    # While there are slots, or nobody knows when the round ends, it asks as often as it may.
    for demand in (Demand(open_slots=1, next_round_s=30.0), Demand(next_round_s=0.0)):
        again = window(20, 20, demand, SETTINGS)
        assert (again.min_ms, again.max_ms) == (320, 480)
    handful = window(5, 5, waiting, SETTINGS)
    assert (handful.min_ms, handful.max_ms) == (160, 240)
    large = window(5000, 5000, waiting, SETTINGS)
    assert (large.min_ms, large.max_ms) == (720_000, 1_080_000)


def test_those_who_meet_at_the_next_round_are_no_more_than_can_be_borne() -> None:
    """A thousand devices ask within their twenty seconds, and are all told of the same round in five minutes."""
    random = np.random.Generator(np.random.PCG64(11))
    back: list[float] = []
    for number in range(1000):
        asked = number / 50
        told = window(1000, 1000, Demand(next_round_s=300.0 - asked), SETTINGS)
        back.append(asked + random.uniform(told.min_ms, told.max_ms) / 1000)
    busiest = np.histogram(back, bins=np.arange(200, 400, 2))[0].max() / 2
    assert busiest < 1.3 * 50


def test_where_few_who_ask_may_take_a_task_more_are_asked() -> None:
    seen = Arrivals(memory_s=60.0)
    for number in range(4000):
        seen.answered(number / 10, took=number % 4 == 0)
    assert seen.share() == pytest.approx(0.25, rel=0.02)
    waits = {False: 0.0, True: 0.0}
    for took in waits:
        fleet = Fleet()
        for number in range(10_000):
            fleet.saw(f"dev_{number}", 0, "people")
        pacer = Pacer(SETTINGS, fleet)
        for second in range(10):
            waits[took] = pacer.window("people", Demand(open_slots=300), 5000 + 1000 * second, took=took).max_ms
    assert waits[True] > 2 * waits[False]


def test_who_has_contributed_rests_as_long_as_every_experiment_lets_it() -> None:
    soon = RetryWindow(min_ms=160, max_ms=240)
    assert rested(soon, ()) == rested(soon, (0.0, 86_400.0)) == soon
    assert rested(soon, (3600.0, 7200.0)) == RetryWindow(min_ms=3_600_000, max_ms=4_320_000)
    assert rested(soon, (366 * 86_400.0,)).max_ms == 7 * 24 * 3600 * 1000


def test_littles_law_counts_a_fleet_whose_windows_change() -> None:
    random = np.random.Generator(np.random.PCG64(3))
    seen = Arrivals(memory_s=60.0)
    for begin, wait in ((0.0, 20.0), (600.0, 50.0)):
        due = np.sort(begin + random.uniform(0.8, 1.2, 2000) * wait * random.uniform(0, 1, 2000))
        now = begin
        while now < begin + 600:
            now = due[0]
            seen.arrived(now)
            seen.issued(wait, now)
            due[0] = now + wait * random.uniform(0.8, 1.2)
            place = int(cast(Any, due[1:]).searchsorted(due[0]))
            due[: place + 1] = np.roll(due[: place + 1], -1)
        assert seen.estimate(now) == pytest.approx(2000, rel=0.08)


def test_a_fleet_settles_at_half_of_what_can_be_borne_and_stays_flat() -> None:
    """20 000 devices against 100 check-ins a second, after an outage that ended for all of them at once."""
    random = np.random.Generator(np.random.PCG64(5))
    # A fleet that is never counted by name stands for one that is larger than the process can remember.
    pacer = Pacer(SETTINGS, Fleet())
    due = np.sort(random.uniform(0, 300, 20_000))
    wanted = Demand(open_slots=1_000_000)
    rates: list[int] = []
    for second in range(1800):
        arrived = int(np.searchsorted(due, second + 1))
        windows = [pacer.window("people", wanted, round(at * 1000)) for at in due[:arrived]]
        again = np.array([random.uniform(w.min_ms, w.max_ms) / 1000 for w in windows])
        due = np.sort(np.concatenate([due[arrived:], due[:arrived] + again]))
        rates.append(arrived)
    late = np.array(rates[1200:], np.float64)
    assert late.mean() == pytest.approx(50, rel=0.15)
    assert late.reshape(-1, 30).mean(1).max() < 75


def test_a_fleet_that_is_seen_is_paced_by_its_count(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator(check_in_rate=10.0, retry_floor_s=0.2) as operator:
            here = operator.app.state.coordinator
            small = here.presence.pacer.window("people", Demand(open_slots=1), now_ms())
            assert (small.min_ms, small.max_ms) == (160, 240)
            for number in range(1000):
                here.presence.fleet.saw(f"dev_{number}", now_ms(), "people")
            large = here.presence.pacer.window("people", Demand(open_slots=1), now_ms() + 2000)
            # A thousand devices at half of ten per second come back every 200 seconds.
            assert (large.min_ms, large.max_ms) == (160_000, 240_000)
            assert here.presence.fleet.longest_pause_ms("people") == 240_000

    asyncio.run(work())


@pytest.mark.parametrize("set_by", [-3600, 3600], ids=["back", "forward"])
def test_a_clock_that_is_set_makes_no_crowd_of_a_few_devices(set_by: int) -> None:
    random = np.random.Generator(np.random.PCG64(7))
    fleet = Fleet()
    pacer, wanted = Pacer(SETTINGS, fleet), Demand(open_slots=10, seconds=150.0)
    due = {number: random.uniform(0, 1) for number in range(150)}
    waits: list[float] = []
    now = 0
    while (at := min(due.values())) < 400:
        number = min(due, key=due.__getitem__)
        # A third of the devices are gone when the clock is set.
        if at > 200 and number < 50:
            del due[number]
            continue
        now = round((1e9 + at + (set_by if at > 200 else 0)) * 1000)
        fleet.saw(f"dev_{number}", now, "people")
        window = pacer.window("people", wanted, now)
        due[number] = at + random.uniform(window.min_ms, window.max_ms) / 1000
        waits += [window.max_ms / 1000] if at > 150 else []  # a fleet that comes all at once is counted by then
    assert max(waits) < 4.5  # 150 devices at half of a hundred check-ins a second
    assert fleet.count(now, "people") == 100 and len(fleet.around("people", 0)) == 100


def test_the_next_round_is_never_expected_later_than_a_round_takes(coordinator: Opener) -> None:
    """Also by a clock that was set back while a round ran."""

    async def work() -> None:
        async with coordinator() as operator:
            await operator.population()
            experiment = await operator.experiment(rounds=2, cohort=2)
            here = operator.app.state.coordinator
            here.rounds.durations[experiment] = (40.0, 30.0)
            await here.board.refresh()
            for earlier, expected in ((0, 30.0), (3_600_000, 30.0)):
                demand = here.board.demand("people", now_ms() - earlier)
                assert demand.next_round_s == pytest.approx(expected, abs=2.0)

    asyncio.run(work())
