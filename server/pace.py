"""Pace steering: when a device should come back, so that a fleet of any size checks in at a rate that the coordinator
can bear and that its rounds need.

Little's law counts a fleet without a row per device: devices that come back every W seconds and arrive at a rate r are
N = r · W many. From there (Bonawitz et al., "Towards Federated Learning at Scale", 2019, section 2.3):

* capacity: no more than half of ``check_in_rate`` arrivals a second, whatever the number of devices;
* demand: a large fleet comes no oftener than the open tasks need, of which not everybody who asks may take one;
* a small fleet comes often, so that short rounds do not wait; where even that is a crowd, it comes back about when the
  next round should begin, once its tasks are handed out, over as long as the capacity asks;
* whoever has contributed rests for as long as its experiment says.

Windows are ±20 % wide and drawn from evenly, which keeps the rate flat.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coterie.protocol.device import RetryWindow
from coterie.protocol.wire import WEEK_MS
from coterie.server.fleet import Fleet
from coterie.server.settings import Settings

SPREAD = 0.2
HALF_LOAD = 0.5
SMALL_FLEET = 5000
MEMORY_S = 60.0
"""Over how long rates are averaged."""


class Arrivals:
    """The rate of check-ins, the mean window issued, and the share of those who got a task where some were open, each
    averaged over the last minute with falling weight.

    Times are seconds on any clock. One that is set back takes what was noted with it.
    """

    def __init__(self, memory_s: float = MEMORY_S) -> None:
        self._memory_s = memory_s
        self._begun: float | None = None
        self._at = 0.0
        self._arrivals = 0.0
        self._windows = 0.0
        self._issued = 0.0
        self._asked = 0.0
        self._taken = 0.0

    def arrived(self, now: float) -> None:
        """Note a check-in."""
        self._fade(now)
        self._arrivals += 1

    def issued(self, mean_s: float, now: float) -> None:
        """Note the mean of a window that a device was told."""
        self._fade(now)
        self._windows += mean_s
        self._issued += 1

    def answered(self, now: float, *, took: bool) -> None:
        """Note whether a device got a task when there were open ones."""
        self._fade(now)
        self._asked += 1
        self._taken += took

    def share(self) -> float:
        """The share of those who ask that get a task: eligible, able, and not resting."""
        return (self._taken + 1) / (self._asked + 1)

    def rate(self, now: float) -> float:
        """Check-ins a second."""
        self._fade(now)
        if self._begun is None:
            return 0.0
        seen = -math.expm1(-max(now - self._begun, 1.0) / self._memory_s)
        return self._arrivals / (self._memory_s * seen)

    def mean_window(self) -> float:
        """The mean of the windows issued, in seconds."""
        return self._windows / self._issued if self._issued else 0.0

    def estimate(self, now: float) -> float:
        """How many devices there are: Little's law."""
        return self.rate(now) * self.mean_window()

    def _fade(self, now: float) -> None:
        if self._begun is None:
            self._begun = self._at = now
        if now < self._at:
            # Else nothing would fade until the clock has caught up, and a few devices would pass for a crowd.
            self._begun -= self._at - now
            self._at = now
        factor = math.exp(-(now - self._at) / self._memory_s)
        self._arrivals *= factor
        self._windows *= factor
        self._issued *= factor
        self._asked *= factor
        self._taken *= factor
        self._at = now


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What the experiments of a population want of its devices now.

    open_slots: tasks that nobody has.
    seconds: in which they should be taken.
    yield_: the share of tasks that bring an update.
    share: of the devices that ask, those that may take one.
    next_round_s: when the next round should begin, for a fleet whose tasks are all handed out; 0 when unknown.
    """

    open_slots: int = 0
    seconds: float = 60.0
    yield_: float = 1.0
    share: float = 1.0
    next_round_s: float = 0.0

    @property
    def rate(self) -> float:
        """Arrivals a second that fill the open slots in time."""
        return self.open_slots / max(self.yield_, 0.1) / max(self.share, 0.001) / max(self.seconds, 1.0)


def mean_wait(devices: float, everybody: float, demand: Demand | None, settings: Settings) -> float:
    """The mean wait, in seconds, that keeps a population of this size at the rate wanted.

    everybody: the devices of all populations, which share the coordinator.
    demand: None when no experiment runs.
    """
    floor = settings.retry_idle_s if demand is None else settings.retry_floor_s
    bearable = max(floor, everybody / (HALF_LOAD * settings.check_in_rate))
    if devices < SMALL_FLEET:
        return bearable
    # However little is wanted, a fleet is asked often enough that a new experiment finds it.
    wanted = max(0.0 if demand is None else demand.rate, devices / settings.retry_ceiling_s)
    return max(bearable, devices / wanted)


def window(devices: float, everybody: float, demand: Demand | None, settings: Settings) -> RetryWindow:
    """When a device should come back that got no task, or whose work came to nothing."""
    mean = mean_wait(devices, everybody, demand, settings)
    begin, width = mean * (1 - SPREAD), 2 * SPREAD * mean
    # A handful of devices may ask as often as they like, and then nobody has to guess when a round will end.
    crowded = mean > settings.retry_floor_s and devices < SMALL_FLEET
    if demand is not None and crowded and demand.open_slots == 0:
        meeting = (1 - SPREAD) * min(demand.next_round_s, settings.retry_ceiling_s)
        if meeting > begin:
            # All of them are told the same moment: only the width keeps them apart.
            begin, width = meeting, mean
    return _window(begin, begin + width)


def rested(soonest: RetryWindow, rests_s: Sequence[float]) -> RetryWindow:
    """When a device should come back whose update was accepted: not before it may take part again in one of the
    experiments that run, each of which lets it rest for so long.
    """
    rest = min(rests_s, default=0.0)
    if rest * 1000 <= soonest.min_ms:
        return soonest
    return _window(rest, rest * (1 + SPREAD))


class Pacer:
    """Paces the populations of one coordinator process, from what it has seen since it started."""

    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self._settings = settings
        self._fleet = fleet
        self._arrivals: dict[str, Arrivals] = {}

    def window(self, population: str, demand: Demand | None, now: int, *, took: bool = False) -> RetryWindow:
        """Note the check-in of a device, and whether it took a task, and say when it should come back.

        now: milliseconds.
        """
        seconds = now / 1000
        seen = self._arrivals.setdefault(population, Arrivals())
        seen.arrived(seconds)
        if demand is not None and demand.open_slots:
            seen.answered(seconds, took=took)
            demand = replace(demand, share=seen.share())
        # A count of those seen lately is exact for a fleet that comes often, and too low for one that comes seldom.
        devices = max(float(self._fleet.count(now, population)), seen.estimate(seconds))
        others = [arrivals.estimate(seconds) for name, arrivals in self._arrivals.items() if name != population]
        everybody = max(float(self._fleet.count(now)), devices + sum(others))
        again = window(devices, everybody, demand, self._settings)
        seen.issued((again.min_ms + again.max_ms) / 2000, seconds)
        self._fleet.paused(population, again.max_ms)
        return again


def _window(begin_s: float, end_s: float) -> RetryWindow:
    return RetryWindow(min_ms=min(round(begin_s * 1000), WEEK_MS), max_ms=min(round(end_s * 1000), WEEK_MS))
