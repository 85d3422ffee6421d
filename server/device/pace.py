"""Pace steering: when a device should come back, so that a fleet of any size checks in at the rate that the coordinator
asked for.
"""

from coterie.protocol.device import RetryWindow
from coterie.server.coordinator import Coordinator

SPREAD = 0.2
HALF_LOAD = 0.5


def window(coordinator: Coordinator, *, busy: bool, now: int) -> RetryWindow:
    """Spread evenly over ±20 % of a mean wait: at least the floor, and long enough for the devices seen lately to stay
    at half the rate.

    A small fleet comes back often, so that short rounds do not wait; a large one is slowed down in proportion to its
    size.
    """
    settings = coordinator.settings
    active = coordinator.fleet.count(now)
    floor = settings.retry_floor_s if busy else settings.retry_idle_s
    mean = max(floor, active / (HALF_LOAD * settings.check_in_rate))
    return RetryWindow(min_ms=round(mean * (1 - SPREAD) * 1000), max_ms=round(mean * (1 + SPREAD) * 1000))
