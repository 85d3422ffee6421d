"""What a check-in may cost: nothing of the database where nothing can be given, and never the event loop's time where
somebody else holds the database.
"""

import asyncio
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from server_kit import Opener, fleet, update
from sqlalchemy import event
from sqlalchemy.engine import Engine

from coterie.server.store.inline import connect


@contextmanager
def statements() -> Generator[list[str]]:
    """The statements of all engines while it is open."""
    seen: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("why", ["no task is left", "nobody is eligible", "no experiment runs"])
def test_a_check_in_to_which_nothing_can_be_given_asks_the_database_nothing(coordinator: Opener, why: str) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            holder, asker = await fleet(operator, await operator.population(), 2)
            if why == "no task is left":
                await operator.experiment(rounds=1, cohort=1)
                await holder.task(5)
            elif why == "nobody is eligible":
                await operator.experiment(rounds=1, cohort=1, min_examples=10)
            assert (await asker.check_in())["task"] is None  # the first one looks whether it holds a task
            with statements() as seen:
                for _ in range(3):
                    assert (await asker.check_in())["task"] is None
            assert seen == []

    asyncio.run(work())


def test_what_was_committed_is_offered_at_once(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            token = await operator.population()
            first, second = await fleet(operator, token, 2)
            await operator.experiment(rounds=1, cohort=1)
            task = await first.task(5)
            assert (await second.check_in())["task"] is None
            # The task that is given back is open again with the commit, and so for the very next check-in.
            answer = await first.send("POST", f"/v1/device/tasks/{task.id}/abort", b'{"phase":"training","code":"no"}')
            assert answer.is_success, answer.text
            assert (await second.check_in())["task"] is not None

    asyncio.run(work())


def test_a_device_that_holds_a_task_gets_it_again_also_when_nothing_else_is_left(coordinator: Opener) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            (device,) = await fleet(operator, await operator.population(), 1)
            await operator.experiment(rounds=2, cohort=1)
            for _ in range(2):
                task = await device.task(5)
                assert [(await device.check_in())["task"]["id"] for _ in range(3)] == [task.id] * 3
                assert (await device.upload(task, update(task))).is_success
            assert (await device.check_in())["task"] is None

    asyncio.run(work())


def test_who_waits_for_the_lock_of_another_process_does_not_stop_the_event_loop(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"

    async def work() -> None:
        ours = await connect(path)
        theirs = sqlite3.connect(path, isolation_level=None)
        theirs.execute("BEGIN IMMEDIATE")
        cursor = ours.cursor()
        beginning = asyncio.create_task(cursor.execute("BEGIN IMMEDIATE"))
        begun = time.monotonic()
        await asyncio.sleep(0.3)
        assert time.monotonic() - begun < 5, "the event loop stood still for the whole time-out"
        assert not beginning.done()
        theirs.execute("COMMIT")
        await beginning
        await cursor.execute("CREATE TABLE rows (id INTEGER)")
        await ours.commit()
        assert theirs.execute("SELECT count(*) FROM rows").fetchone() == (0,)
        theirs.close()
        await ours.close()

    asyncio.run(work())


def test_a_commit_that_is_cancelled_is_done_before_anybody_uses_the_connection(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"

    async def work() -> None:
        connection = await connect(path)
        cursor = connection.cursor()
        await cursor.execute("CREATE TABLE rows (id INTEGER)")
        for number in range(20):
            await cursor.execute("BEGIN IMMEDIATE")
            await cursor.execute("INSERT INTO rows VALUES (?)", (number,))
            committing = asyncio.create_task(connection.commit())
            await asyncio.sleep(0)
            committing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await committing
            assert not connection.raw.in_transaction
        await connection.close()

    asyncio.run(work())
    with sqlite3.connect(path) as reader:
        assert reader.execute("SELECT count(*) FROM rows").fetchone() == (20,)
    reader.close()
