"""Worker processes that cannot be replaced, that hang, and that have no room for their answers."""

import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from simulation_kit import CLIENTS, experiment
from test_engines import add_one, external

from coterie.aggregation.compiling.compile import compile_plan
from coterie.client_sdk.device.trainers.external import ExternalTrainer, FitResult, FitTask, Params
from coterie.errors import RemoteError, StorageError
from coterie.simulation import simulate
from coterie.simulation.engines import processes, shared
from coterie.simulation.engines.naming import PLAN_TRAINER

Worker = processes._Worker  # pyright: ignore[reportPrivateUsage]


class Interrupted(Exception):
    """Stands for Ctrl-C."""


def hangs(params: Params, task: FitTask) -> FitResult:
    time.sleep(600)
    return add_one(params, task)


HANGS = ExternalTrainer(hangs)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Sequence[Worker]:
    """The workers of the test."""
    found: list[Worker] = []
    start = Worker.start

    def starts(folder: Path, trainer: str) -> Worker:
        found.append(start(folder, trainer))
        return found[-1]

    monkeypatch.setattr(Worker, "start", staticmethod(starts))
    return found


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a signal at a moment")
def test_ctrl_c_ends_workers_that_hang(started: Sequence[Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_PATIENCE_S", 0.2)

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    def watch(round: int, kind: str, done: int, total: int) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.5)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupted):
            simulate(external(), CLIENTS, engine="processes", trainer="test_worker_failures:HANGS", watch=watch)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert [worker.process.returncode for worker in started] == [-signal.SIGKILL]


def test_a_worker_that_cannot_be_replaced_ends_the_run(
    started: Sequence[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = Worker.await_ready

    def once(self: Worker) -> None:
        if len(started) > 1:
            raise RemoteError("No other worker can start.", code="worker_lost")
        ready(self)

    monkeypatch.setattr(Worker, "await_ready", once)
    with pytest.raises(RemoteError, match="No other worker can start"):
        simulate(external(), CLIENTS, engine="processes", trainer="test_engines:DIES")
    assert all(worker.process.returncode is not None for worker in started)


@pytest.mark.parametrize("trainer", [PLAN_TRAINER, "no_module:at_all"])
def test_a_worker_whose_run_is_killed_while_it_starts_clears_its_memory_away(tmp_path: Path, trainer: str) -> None:
    plan = compile_plan(experiment()).plan
    folder = tmp_path / "memory"
    plan.save(folder / "plan")
    worker = Worker.start(folder, trainer)
    # Nobody is there any more, neither to ask nor to hear.
    for pipe in (worker.process.stdin, worker.process.stdout):
        if pipe is not None:
            pipe.close()
    worker.process.wait(60)
    assert not folder.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_shared_memory_that_is_full_is_named() -> None:
    with pytest.raises(StorageError, match="memory that processes share.*No space left") as told:
        shared.write(Path("/dev/full"), {"w": np.zeros(9)})
    assert "--shm-size" in str(told.value.hint)
