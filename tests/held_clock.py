"""A coordinator's clock that a test holds: what must come before a deadline or the end of a lease comes before it, on a
machine of any speed; and what must pass is not waited for.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from coterie.server import clock


@dataclass
class HeldClock:
    """A clock that stands still until it is set forward.

    file: by it a coordinator in another process knows.
    """

    at_ns: int
    file: Path | None = None

    def __post_init__(self) -> None:
        self.forward(0)

    def forward(self, seconds: float) -> None:
        """Let this time pass. The coordinator notices when it looks next: with a commit, or after the time that it
        expects to pass until a lease or a deadline ends.
        """
        self.at_ns += round(seconds * 1e9)
        if self.file is not None:
            part = self.file.with_suffix(".part")
            part.write_text(str(self.at_ns))
            part.rename(self.file)


@contextmanager
def held() -> Generator[HeldClock, None, None]:
    """Hold the clock of the coordinators in this process; afterwards it says again what the machine's says."""
    standing = HeldClock(time.time_ns())
    with _clock(lambda: standing.at_ns):
        yield standing


@contextmanager
def held_in(file: Path) -> Generator[HeldClock, None, None]:
    """Hold the clock of a coordinator in a process that is `held_by` this file."""
    try:
        yield HeldClock(time.time_ns(), file)
    finally:
        file.unlink()


@contextmanager
def held_by(file: Path) -> Generator[None, None, None]:
    """In a coordinator's process: its clock stands still at the nanoseconds that a file says, while there is one."""

    def now_ns() -> int:
        try:
            return int(file.read_text())
        except FileNotFoundError:
            return time.time_ns()

    with _clock(now_ns):
        yield


@contextmanager
def _clock(now_ns: Callable[[], int]) -> Generator[None, None, None]:
    with mock.patch.object(clock, "time", SimpleNamespace(time_ns=now_ns)):
        yield
