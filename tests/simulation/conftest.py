"""The simulation's tests share a small experiment."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from coterie.simulation.engines import processes

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def prepared_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are forks of one that has imported what they need; with a wheel alone, which has nothing of the
    coordinator's, they are the programs that a user's are.
    """
    if find_spec("tests.prepared") is not None:
        prepared: Any = import_module("tests.prepared")
        monkeypatch.setattr(processes, "PROGRAM", prepared.worker_program(prepared.SIMULATION))
