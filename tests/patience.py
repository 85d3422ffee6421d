"""How long tests wait for what should happen soon: longer on a machine that is slow, measured once, or busy just now.

A test that passes never waits for its patience to end, so it costs nothing; one that fails fails later.
"""

import os
import subprocess
import sys
import time
from functools import cache
from typing import Final

_VARIABLE: Final = "COTERIE_TESTS_SLOWNESS"
_USUAL_S: Final = 0.08
"""A process that imports asyncio and sqlite3 lives so long on a machine of two cores with nothing else to do."""
_MOST: Final = 12.0


def slowness() -> float:
    """How many times slower than a quiet machine of two cores this one is now, at least 1."""
    return min(max(1.0, _at_first(), _load()), _MOST)


def patience(seconds: float) -> float:
    """What `seconds` on a quiet machine are on this one."""
    return seconds * slowness()


@cache
def _at_first() -> float:
    """By a measurement of the first process of a test run, which those that it starts believe."""
    said = os.environ.get(_VARIABLE)
    if said is not None:
        return float(said)
    found = _measured()
    os.environ[_VARIABLE] = f"{found:.2f}"
    return found


def _measured() -> float:
    begun = time.perf_counter()
    for _ in range(3):
        subprocess.run([sys.executable, "-I", "-c", "import asyncio, sqlite3"], check=True)
    return (time.perf_counter() - begun) / 3 / _USUAL_S


def _load() -> float:
    """Processes that want a core, for each core, in the last minute: other work may have begun since the run began."""
    if not hasattr(os, "getloadavg"):
        return 1.0
    return os.getloadavg()[0] / (os.cpu_count() or 1)
