"""The command line as a user meets it: a program in a process of its own, in an empty folder."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


Coterie = Callable[..., Done]


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment without any of coterie's own settings, and with one thread for each program."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("COTERIE_")}
    return {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "200"}


@pytest.fixture
def coterie(tmp_path: Path, environment: dict[str, str]) -> Coterie:
    """Runs `coterie …` in the test's folder."""

    def run(*words: str, timeout: float = 120.0, cwd: Path = tmp_path, **more: str) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "coterie.cli.main", *words],
            cwd=cwd,
            env={**environment, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run
