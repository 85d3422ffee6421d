"""Processes that a command leaves, or does not."""

import os
import time
from pathlib import Path

from tests.patience import patience


def processes_in(folder: Path) -> list[int]:
    """Processes that work in a folder: whatever the demo started inherits its working folder."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                where = Path(os.readlink(entry / "cwd"))
                state = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            except OSError:
                continue
            if where.is_relative_to(folder) and state != "Z":
                found.append(int(entry.name))
    return found


def await_none_in(folder: Path, seconds: float) -> list[int]:
    deadline = time.monotonic() + patience(seconds)
    while (left := processes_in(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
