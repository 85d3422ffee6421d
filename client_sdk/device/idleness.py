"""A device that gets no task: what to tell its owner, once, and how long to wait before it asks again."""

import random
from dataclasses import dataclass
from typing import Final

from coterie.protocol.device import Idle

MOST_S: Final = 60.0
"""A device for which nothing can come asks once in so many seconds at most."""
SPREAD: Final = 1.25
PATIENCE_S: Final = 5.0
"""For so long a device may wait for a place in a round without a word: between two rounds that is usual."""


@dataclass
class Idleness:
    """Since when a device has had nothing to do, and why.

    reported: whether its owner has heard of it.
    """

    why: Idle | None = None
    since: float = 0.0
    reported: bool = False

    def over(self) -> None:
        """There was a task."""
        self.why, self.reported = None, False

    def news(self, why: Idle, now: float) -> bool:
        """Note an answer without a task. Whether the owner should be told why.

        now: seconds of a clock that only rises.
        """
        if why != self.why:
            self.why, self.since, self.reported = why, now, False
        due = why != "no_place" or now - self.since >= PATIENCE_S
        first, self.reported = due and not self.reported, self.reported or due
        return first

    def pause(self, drawn: float, now: float, rng: random.Random) -> float:
        """Seconds to wait.

        drawn: as the coordinator wants it. Where nothing can come soon, as long again as the device has been idle, up
            to a minute: so whoever starts an experiment at once need not wait for the device.
        """
        if self.why in (None, "no_place"):
            return drawn
        return max(drawn, min(now - self.since, MOST_S) * rng.uniform(1.0, SPREAD))
