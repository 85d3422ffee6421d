"""A hook for tests that kill a process between two durable facts. A part that promises to survive a kill names its
points in a table, passes them, and is killed by its tests at each one; nothing here does anything unless the
environment asks for it.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from typing import ClassVar, Self

from coterie.errors import ConfigurationError, InternalError


def kill_self() -> None:
    """End this process at once, as a power cut would: nothing is flushed, nothing is caught."""
    os.kill(os.getpid(), signal.SIGKILL)


class FaultHook:
    """Counts the points that this process reaches, and strikes at the one that was asked for.

    Abstract: a part derives its own and says ``points`` (name → what happens there) and ``variable``, the environment
    variable that asks for a fault: ``<point>:<nth>``, counted from 1.
    """

    points: ClassVar[Mapping[str, str]]
    variable: ClassVar[str]

    def __init__(self, point: str | None = None, nth: int = 1, strike: Callable[[], None] = kill_self) -> None:
        if point is not None and point not in self.points:
            raise ConfigurationError(
                f"There is no fault point {point!r}.",
                hint=f"{self.variable} takes <point>:<nth> with one of {', '.join(self.points)}.",
            )
        self._point = point
        self._nth = nth
        self._strike = strike
        self.reached: Counter[str] = Counter()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """The fault that the variable names, or none. Raises ConfigurationError for one that does not exist."""
        text = (os.environ if environment is None else environment).get(cls.variable, "")
        if not text:
            return cls()
        point, _, nth = text.partition(":")
        if not (nth or "1").isdecimal() or int(nth or "1") < 1:
            raise ConfigurationError(
                f"{cls.variable}={text!r} does not say which time.", hint=f"Write <point>:<nth>, for example {point}:1."
            )
        return cls(point, int(nth or "1"))

    def reach(self, point: str) -> None:
        """Say that the process is at a point; does not return from the one that strikes."""
        if point not in self.points:
            raise InternalError(f"The fault point {point!r} is missing from its table.")
        self.reached[point] += 1
        if point == self._point and self.reached[point] == self._nth:
            self._strike()
