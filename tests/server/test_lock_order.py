"""The order of locks: what goes against it is seen, and what locks several experiments keeps to it."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from job_kit import KEY, plant
from server_kit import Opener, fleet
from sqlalchemy import Engine, Select, event, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.server.bell import Bell
from coterie.server.faults import CoordinatorFaults
from coterie.server.store import attempts, experiments, nonces, tasks
from coterie.server.store.dialect import sqlite_url
from coterie.server.store.engine import Database
from coterie.server.store.tables import ExperimentRow, RoundRow, TaskRow
from tests.empty_database import prepare
from tests.lock_order import POSTGRESQL, check_told, watched

Work = Callable[[AsyncSession], Awaitable[object]]


async def lock(session: AsyncSession) -> None:
    await experiments.lock(session, KEY.experiment)


async def lock_experiment_alone(session: AsyncSession) -> None:
    await session.execute(select(ExperimentRow).with_for_update())


async def lock_round(session: AsyncSession) -> None:
    await session.execute(select(RoundRow).with_for_update(read=True))


async def change_experiment(session: AsyncSession) -> None:
    await session.execute(update(ExperimentRow).values(round=1))


async def change_round(session: AsyncSession) -> None:
    await session.execute(update(RoundRow).values(bytes_down=1))


async def change_attempt(session: AsyncSession) -> None:
    await attempts.move(session, "att_none", 1, {"awaited": 1})


async def change_task(session: AsyncSession) -> None:
    await tasks.extend(session, "task_none", 1)


async def spend_nonce(session: AsyncSession) -> None:
    await nonces.spend(session, "nonce", 1)


BREACH = """
import asyncio, os, signal, sys
from pathlib import Path

sys.path += sys.argv[1:3]
from test_lock_order import change_round, transact
from tests.lock_order import told_to

async def die(session):
    os.kill(os.getpid(), signal.SIGKILL)

with told_to(Path(sys.argv[4])):
    asyncio.run(transact(Path(sys.argv[3]), (change_round, die)))
"""
"""A process that goes against the order and is killed before it commits."""
WRONG: dict[str, tuple[tuple[Work, ...], str]] = {
    "a task, then its experiment": ((change_task, lock), "experiments are locked too late"),
    "a task, then another experiment": ((lock, change_task, lock), "experiments are locked twice"),
    "a nonce, then an experiment": ((spend_nonce, lock), "experiments are locked too late"),
    "an experiment that is changed without a lock": ((change_experiment,), "experiments are changed without a lock"),
    "a round without its experiment": ((change_round,), "rounds are reached without a lock of their experiment"),
    "a round that is changed without a lock": (
        (lock_experiment_alone, change_round),
        "rounds are changed without a lock",
    ),
    "a round's lock after a task": ((lock_experiment_alone, change_task, lock_round), "rounds are locked too late"),
    "an attempt after a task": ((lock, change_task, change_attempt), "attempts are locked too late"),
    "one experiment after the other": ((lock, lock), "experiments are locked twice"),
}
RIGHT: dict[str, tuple[Work, ...]] = {
    "everything by its turn": (lock, change_experiment, change_round, change_attempt, change_task, spend_nonce),
    "a change of what was locked by its turn": (lock, change_attempt, change_task, change_round, change_experiment),
    "one task alone": (spend_nonce, change_task),
}


async def transact(folder: Path, steps: tuple[Work, ...], *, reads: bool = False) -> None:
    """One transaction on a planted database."""
    database = Database(sqlite_url(prepare(folder / "state") / "coterie.db"), CoordinatorFaults(), Bell())
    await plant(database)
    async with database.read() if reads else database.write("stop") as session:
        for step in steps:
            await step(session)
    await database.close()


def told(folder: Path, steps: tuple[Work, ...], *, reads: bool = False) -> list[str]:
    """What the watcher tells of a transaction."""
    wrong: list[str] = []
    with watched(wrong.append):
        asyncio.run(transact(folder, steps, reads=reads))
    return wrong


@pytest.mark.parametrize("name", WRONG)
def test_transaction_against_the_order_is_told(name: str, tmp_path: Path) -> None:
    steps, why = WRONG[name]
    assert why in "\n".join(told(tmp_path, steps))


@pytest.mark.parametrize("name", RIGHT)
def test_transaction_in_order_is_not_told(name: str, tmp_path: Path) -> None:
    assert told(tmp_path, RIGHT[name]) == []


def test_transaction_that_reads_and_locks_is_told(tmp_path: Path) -> None:
    assert told(tmp_path, (lock,), reads=True)[0].startswith("a transaction that reads locks rows")


def test_coordinator_against_the_order_fails_its_test(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            async with operator.app.state.coordinator.storage.database.write("stop") as session:
                await change_round(session)

    with pytest.raises(AssertionError, match="rounds are reached without a lock of their experiment"):
        asyncio.run(work())


def test_process_against_the_order_fails_its_test_though_it_is_killed(tmp_path: Path) -> None:
    disorder = tmp_path / "disorder"
    here = Path(__file__)
    command = [sys.executable, "-c", BREACH, str(here.parent), str(here.parents[2]), str(tmp_path), str(disorder)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    with pytest.raises(AssertionError, match="rounds are reached without a lock of their experiment"):
        check_told(disorder)


def test_experiments_are_locked_by_rising_id_in_two_statements(tmp_path: Path) -> None:
    seen: list[str] = []

    def note(_connection: object, statement: object, *_more: object) -> None:
        if isinstance(statement, Select):
            seen.append(" ".join(str(statement.compile(dialect=POSTGRESQL)).split()))

    async def work() -> None:
        database = Database(sqlite_url(prepare(tmp_path / "state") / "coterie.db"), CoordinatorFaults(), Bell())
        await plant(database)
        async with database.write("experiment") as session:
            first = await session.get_one(ExperimentRow, KEY.experiment)
            told = {column.name: getattr(first, column.name) for column in ExperimentRow.__table__.columns}
            session.add(ExperimentRow(**{**told, "id": "exp_before"}))
        async with database.write("stop") as session:
            event.listen(Engine, "before_execute", note)
            try:
                found = await experiments.lock_all(session, (KEY.experiment, "exp_before", "exp_unknown"))
            finally:
                event.remove(Engine, "before_execute", note)
        await database.close()
        assert list(found) == ["exp_before", KEY.experiment]
        assert [each.opened is None for each in found.values()] == [True, False]

    asyncio.run(work())
    owners, rounds = seen
    assert owners.endswith("ORDER BY experiments.id FOR NO KEY UPDATE")
    assert rounds.endswith("ORDER BY rounds.experiment FOR NO KEY UPDATE")


def test_tasks_of_two_experiments_that_run_out_together_are_all_offered_again(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            devices = await fleet(operator, await operator.population(), 6)
            names = [await operator.experiment(rounds=1, cohort=cohort, min_updates=1) for cohort in (2, 1)]
            first = [(await device.task()).experiment for device in devices[:3]]
            async with operator.app.state.coordinator.storage.database.write("stop") as session:
                await session.execute(update(TaskRow).values(lease_until=1))
            again = [(await device.task()).experiment for device in devices[3:]]
            assert sorted(first) == sorted(again) == sorted([names[0], *names])

    asyncio.run(work())
