"""Fixtures of the coordinator's tests: an application in this process, and a fleet of scripted devices."""

import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from server_kit import Opener, Operator, in_process

from coterie.server import logs
from coterie.server.settings import Settings
from coterie.server.worker import workers
from tests.empty_database import prepare
from tests.prepared import WORKER, worker_program

LOG_LEVEL = "error"


@pytest.fixture(autouse=True)
def few_logs() -> None:
    """Errors only, to where this test's standard error goes: a command that another test ran in this process may have
    left its own level, and a stream that is closed.
    """
    logs.configure(LOG_LEVEL)


@pytest.fixture
def usual_logs(few_logs: None) -> Generator[None, None, None]:
    """Logs at the level that `coterie server` has unless told otherwise, for tests of what an operator hears."""
    logs.configure("warning")
    yield
    logs.configure(LOG_LEVEL)


@pytest.fixture(autouse=True)
def prepared_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are forks of one that has imported what they need."""
    monkeypatch.setattr(workers, "PROGRAM", worker_program())


@pytest.fixture
def own_workers(prepared_workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are started as outside of tests: for tests that stop them, or change what they find."""
    monkeypatch.setattr(workers, "PROGRAM", (sys.executable, "-m", WORKER))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A coordinator's settings with short waits, in a folder of its own."""
    return Settings(
        folder=prepare(tmp_path / "state"),
        retry_floor_s=0.02,
        retry_idle_s=0.02,
        heartbeat_s=0.2,
        log_level="error",
        prestart=False,
    )


@pytest.fixture
def coordinator(settings: Settings) -> Opener:
    """Opens a coordinator in this process; opening it twice one after the other is a restart."""

    @asynccontextmanager
    async def open_it(**changes: object) -> AsyncGenerator[Operator, None]:
        async with in_process(settings.model_copy(update=changes)) as operator:
            yield operator

    return open_it
