"""Native code of others in a process of its own: where it reads what it must not, or waits for ever, only that process
is lost.
"""

import faulthandler
import os
import signal
import subprocess
import sys
from collections.abc import Callable


def told_apart(module: str, *arguments: str, limit_s: float) -> tuple[list[str], str]:
    """What ``python -m module arguments``, which uses ``teller``, told, line by line; and how it ended, in words: ""
    where it ended well, "ended by SIGSEGV", "did not end within 60 s".

    It finds the modules that this process finds. What it prints otherwise is not kept.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        # A session of its own: what a terminal sends to this process is not meant for that one.
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as late:
        return _lines(late.stdout or b""), f"did not end within {limit_s:g} s"
    except OSError as error:
        return [], f"could not be started: {error.strerror}"
    return _lines(done.stdout), _ending(done)


def teller(limit_s: float) -> Callable[[str], None]:
    """In that process: what tells a line. It ends with whoever started it, or after ``limit_s`` seconds, and by no
    signal that means that one.
    """
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    faulthandler.dump_traceback_later(limit_s, exit=True)
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the code of others prints is not told
    return lambda line: print(line, file=channel, flush=True)


def leave() -> None:
    """In that process, when all is told: end it at once. Libraries that fail while they are unloaded have done their
    work.
    """
    os._exit(0)


def _lines(output: bytes) -> list[str]:
    """Whole lines: the last may have been cut off."""
    return output.decode("utf-8", "replace").split("\n")[:-1]


def _ending(done: "subprocess.CompletedProcess[bytes]") -> str:
    if not done.returncode:
        return ""
    if done.returncode < 0:
        return f"ended by {signal.Signals(-done.returncode).name}"
    last = next(iter(reversed(done.stderr.decode("utf-8", "replace").strip().splitlines())), "it said nothing")
    return f"ended with {done.returncode}: {last[:300]}"
