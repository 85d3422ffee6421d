"""The command line as a user meets it: a program in a process of its own, in an empty folder."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.prepared import start

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
        program = start(words, cwd=cwd, env={**environment, **more})
        out, err = program.communicate(timeout=timeout)
        return Done(program.wait(), out, err)

    return run
