"""Fixtures of the client's tests: a coordinator in this process, and one in a process of its own."""

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sdk_kit import Coordinator, coordinator_process

from coterie.simulation.engines import processes
from tests.prepared import SIMULATION, worker_program


@pytest.fixture(autouse=True)
def prepared_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes of simulations are forks of one that has imported what they need."""
    monkeypatch.setattr(processes, "PROGRAM", worker_program(SIMULATION))


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Generator[Coordinator, None, None]:
    """A real coordinator on a loopback port, ended by its own process id."""
    with coordinator_process(tmp_path_factory.mktemp("coordinator")) as started:
        yield started
