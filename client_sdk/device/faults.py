"""Faults for tests: the table of every point between two durable facts of a device, and a hook that kills the process
there.

``COTERIE_CLIENT_FAULT="<point>:<nth>"`` sends SIGKILL to the process when it reaches the point for the nth time
(counted from 1). It is read when an agent is made. A test that enumerates ``POINTS`` has killed a device in every phase
of its work.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from coterie.errors import ConfigurationError, InternalError

VARIABLE: Final = "COTERIE_CLIENT_FAULT"

POINTS: Final[Mapping[str, str]] = {
    "enrolled": "the coordinator knows the device, the device does not know that yet",
    "joined": "the membership is stored",
    "checked_in": "a check-in was answered, nothing of the answer is stored",
    "settled": "what became of earlier updates is stored, the new task is not",
    "leased": "the task is stored, nothing is downloaded",
    "downloading": "a part of a blob is on disk",
    "downloaded": "plan and model are there and checked",
    "training": "a training step has run",
    "trained": "the update exists in memory only",
    "written": "the update's file is on disk, the store does not know it",
    "stored": "the store knows the update, nothing of it is sent",
    "uploading": "a part of the update is with the coordinator",
    "uploaded": "the coordinator acknowledged the update, the device has not stored that",
    "pending": "the update is stored as pending",
}


def kill_self() -> None:
    """End this process at once, as a power cut would: nothing is flushed, nothing is caught."""
    os.kill(os.getpid(), signal.SIGKILL)


class Faults:
    """Counts the points that this process reaches, and strikes at the one that was asked for."""

    def __init__(self, point: str | None = None, nth: int = 1, strike: Callable[[], None] = kill_self) -> None:
        if point is not None and point not in POINTS:
            raise ConfigurationError(
                f"There is no fault point {point!r}.",
                hint=f"{VARIABLE} takes <point>:<nth> with one of {', '.join(POINTS)}.",
            )
        self._point = point
        self._nth = nth
        self._strike = strike
        self.reached: Counter[str] = Counter()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Faults":
        """The fault that ``COTERIE_CLIENT_FAULT`` names, or none."""
        text = (os.environ if environment is None else environment).get(VARIABLE, "")
        if not text:
            return cls()
        point, _, nth = text.partition(":")
        if not (nth or "1").isdecimal() or int(nth or "1") < 1:
            raise ConfigurationError(
                f"{VARIABLE}={text!r} does not say which time.", hint="Write <point>:<nth>, for example trained:1."
            )
        return cls(point, int(nth or "1"))

    def reach(self, point: str) -> None:
        """Say that the process is at a point; does not return from the one that strikes."""
        if point not in POINTS:
            raise InternalError(f"The fault point {point!r} is missing from POINTS.")
        self.reached[point] += 1
        if point == self._point and self.reached[point] == self._nth:
            self._strike()
