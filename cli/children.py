"""Child processes that cannot outlive their parent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

GRACE_S = 6.0


@contextmanager
def child(
    module: str, arguments: Sequence[str], *, log: Path, environment: Mapping[str, str]
) -> Generator[subprocess.Popen[str]]:
    """A Python module as a child process whose standard input is a pipe from here.

    The child is asked to stop by closing that pipe, which also happens if this process is killed; if it does not end in
    GRACE_S seconds it is killed. It has its own session, so Ctrl-C reaches it only through us. Its standard error goes
    to `log`.
    """
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=dict(environment),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with _deaf_to_interrupts():
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    try:
        if process.stdin is not None:
            process.stdin.close()
    except BrokenPipeError:
        pass
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def _deaf_to_interrupts() -> Generator[None]:
    """A second Ctrl-C must not cut the clearing up short; it takes at most GRACE_S seconds a child."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupt_on_termination() -> None:
    """Make SIGTERM and SIGHUP unwind this program as Ctrl-C does, so that its children are ended too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def age() -> float:
    """Seconds since the system started this process; where there is no /proc, since this module was imported."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return time.monotonic() - _IMPORTED


_IMPORTED = time.monotonic()
