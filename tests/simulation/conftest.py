"""The simulation's tests share a small experiment."""

import sys
from pathlib import Path

import pytest

from coterie.simulation.engines import processes
from tests.prepared import SIMULATION, worker_program

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def prepared_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are forks of one that has imported what they need."""
    monkeypatch.setattr(processes, "PROGRAM", worker_program(SIMULATION))
