"""The command line as a user meets it: a program in a process of its own, in an empty folder."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import prepared
from tests.prepared import Done

sys.path.insert(0, str(Path(__file__).parent))


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
        return prepared.run(words, cwd=cwd, env={**environment, **more}, timeout=timeout)

    return run
