"""Faults for tests: the table of every point where something becomes durable, and a hook that kills the process there.

Nothing in the coordinator becomes durable except by passing a point named here: every write transaction names its row
of ``TRANSACTIONS`` (`coterie.server.store.engine.Database.write` refuses another name) and every blob its row of
``BLOB_WRITES``. So a test that enumerates ``COMMIT_POINTS`` has enumerated every place where a crash can separate what
was promised from what was kept.

``COTERIE_FAULT="<point>:<nth>"`` sends SIGKILL to the process when it reaches the point for the nth time (counted from
1). It is read once, at start.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from coterie.errors import ConfigurationError, InternalError

VARIABLE: Final = "COTERIE_FAULT"

TRANSACTIONS: Final[Mapping[str, str]] = {
    "first_start": "the coordinator's keys and the first admin token",
    "population": "a population, or one of its signers",
    "token": "a token made or revoked",
    "blob": "the row of a blob that an administrator uploaded",
    "experiment": "an experiment as it was asked for, with its initial model version and its first round",
    "stop": "the wish to stop an experiment",
    "enrol": "a device and the use of its enrolment token",
    "revoke": "a device revoked, its lease closed",
    "lease": "a task leased to a device",
    "progress": "a lease extended",
    "part": "a part of an upload that is not the last",
    "accept": "an update accepted: from here on it must be counted exactly once",
    "refuse": "an update refused for good",
    "abort": "a task given up by its device",
    "expire": "leases that ran out",
    "deadline": "a phase whose time ran out",
    "aggregated": "the aggregate of a round recorded",
    "aggregate_failed": "a numeric job given up",
    "evaluated": "a central evaluation recorded",
    "commit": "a model version committed, its round ended and the next one begun",
    "cleanup": "the rows of update blobs that are gone",
    "sweep": "housekeeping at start and now and then: expired nonces and idempotency keys",
}

BLOB_WRITES: Final[Mapping[str, str]] = {
    "upload": "a blob that an administrator uploaded",
    "update": "an update file that a device sent",
    "result": "a model version or server state that an aggregation made",
}

COMMIT_POINTS: Final[Mapping[str, str]] = {
    **{
        f"{name}.{side}_commit": f"{side} the commit of: {what}"
        for name, what in TRANSACTIONS.items()
        for side in ("before", "after")
    },
    **{
        f"{name}_blob.{side}_sync": f"{side} the file and its folder are synced: {what}"
        for name, what in BLOB_WRITES.items()
        for side in ("before", "after")
    },
    "updates.before_delete": "before the update blobs of an ended round are deleted",
    "updates.after_delete": "after the update blobs of an ended round are deleted",
}


def kill_self() -> None:
    """End this process at once, as a power cut would: nothing is flushed, nothing is caught."""
    os.kill(os.getpid(), signal.SIGKILL)


class Faults:
    """Counts the points that this process reaches, and strikes at the one that was asked for."""

    def __init__(self, point: str | None = None, nth: int = 1, strike: Callable[[], None] = kill_self) -> None:
        if point is not None and point not in COMMIT_POINTS:
            raise ConfigurationError(
                f"There is no commit point {point!r}.",
                hint=f"{VARIABLE} takes <point>:<nth> with a point of coterie.server.faults.COMMIT_POINTS.",
            )
        self._point = point
        self._nth = nth
        self._strike = strike
        self.reached: Counter[str] = Counter()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Faults":
        """The fault named by ``COTERIE_FAULT``, or none."""
        text = (os.environ if environment is None else environment).get(VARIABLE, "")
        if not text:
            return cls()
        point, _, nth = text.partition(":")
        if not (nth or "1").isdecimal() or int(nth or "1") < 1:
            raise ConfigurationError(
                f"{VARIABLE}={text!r} does not say which time.",
                hint="Write <point>:<nth>, for example accept.before_commit:1.",
            )
        return cls(point, int(nth or "1"))

    def reach(self, point: str) -> None:
        """Say that the process is at a point; does not return from the one that strikes."""
        if point not in COMMIT_POINTS:
            raise InternalError(f"The commit point {point!r} is missing from COMMIT_POINTS.")
        self.reached[point] += 1
        if point == self._point and self.reached[point] == self._nth:
            self._strike()
