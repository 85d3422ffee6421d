"""What the coordinator reads of rounds, held against what is due for them."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from job_kit import KEY, plant
from sqlalchemy import text

from coterie.aggregation import engine as e
from coterie.server.bell import Bell
from coterie.server.faults import CoordinatorFaults
from coterie.server.store import experiments
from coterie.server.store.dialect import sqlite_url
from coterie.server.store.engine import Database
from coterie.server.store.tables import RoundRow
from tests.empty_database import prepare
from tests.engine_walk import WALKS, reachable

VALUES = [
    replace(value, number=2 + at) for at, value in enumerate(v for walk in WALKS.values() for v in reachable(walk))
]
"""Every value that a round can take, each under a number of its own; the first round is the experiment's own."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return prepare(tmp_path / "state")


async def write(database: Database) -> None:
    """A row for each value, as the coordinator writes it."""
    await plant(database)
    async with database.write("experiment") as session:
        for value in VALUES:
            row = RoundRow(
                experiment=KEY.experiment, number=value.number, phase="collecting", state="", base=value.base,
                version=0, created_at=value.number,
            )  # fmt: skip
            session.add(row)
            await session.flush()
            await experiments.save_round(session, row, value, {})


def test_rounds_are_read_exactly_while_anything_is_due_for_them(folder: Path) -> None:
    async def check() -> None:
        database = Database(sqlite_url(folder / "coterie.db"), CoordinatorFaults(), Bell())
        try:
            await write(database)
            async with database.read() as session:
                read = {found.row.number: found.value for found in await experiments.unfinished_rounds(session)}
                opened = {found.row.number for found in await experiments.open_rounds(session)}
                plan = await session.execute(
                    text("EXPLAIN QUERY PLAN SELECT * FROM rounds WHERE rounds.cleaned IS 0 ORDER BY created_at")
                )
                assert "ix_rounds_unfinished" in str(plan.all())
        finally:
            await database.close()
        mine = {value.number: value for value in VALUES}
        owing = {number for number, value in mine.items() if any(not isinstance(d, e.Close) for d in e.due(value))}
        assert read.keys() - {1} == owing
        assert all(read[number] == mine[number] for number in owing)
        cleaning = {number for number, value in mine.items() if e.work_due(value) is e.Work.CLEAN}
        assert owing - opened == cleaning and len(cleaning) > 100

    asyncio.run(check())
