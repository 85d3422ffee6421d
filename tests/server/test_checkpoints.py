"""A ledger whose end was cut off, or whose database is an old backup: a checkpoint outside of the folder shows it."""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from budget_kit import budget, deliver, private, started, submitted
from server_kit import Operator, fleet, in_process

from coterie.errors import ConfigurationError
from coterie.privacy.ledger.chain import Entry
from coterie.server.settings import Settings
from tests.empty_database import prepare


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run an asynchronous test."""
    asyncio.run(work)


@pytest.fixture
def kept(tmp_path: Path) -> Settings:
    """A coordinator with checkpoints beside its folder."""
    folder = prepare(tmp_path / "state")
    return Settings(folder=folder, ledger_checkpoints=tmp_path / "elsewhere", prestart=False, retry_floor_s=0.02)


async def one_round(operator: Operator) -> None:
    """An experiment of one round, which is paid for."""
    devices = await fleet(operator, await operator.population(), 2)
    experiment = await started(operator, private(), rounds=1)
    await deliver(devices)
    await operator.finished(experiment)


def end_of(settings: Settings) -> tuple[int, int]:
    """The newest entry in the database, and that of the checkpoint."""
    with sqlite3.connect(settings.folder / "coterie.db") as database:
        (rows,) = database.execute("SELECT max(sequence) FROM ledger").fetchone()
    assert settings.ledger_checkpoints is not None
    entry = Entry.from_json(json.loads((settings.ledger_checkpoints / "people.json").read_text()))
    return rows, entry.sequence


def cut(settings: Settings, count: int) -> None:
    """Take the last entries off, as somebody with the database can, so that the rest is a whole chain."""
    with sqlite3.connect(settings.folder / "coterie.db") as database:
        (last,) = database.execute("SELECT max(sequence) FROM ledger").fetchone()
        database.execute("DELETE FROM ledger WHERE sequence > ?", (last - count,))
        (digest,) = database.execute("SELECT digest FROM ledger WHERE sequence = ?", (last - count,)).fetchone()
        end = (last - count, digest)
        database.execute("UPDATE chains SET sequence = ?, digest = ? WHERE name LIKE 'ledger/%'", end)


async def closed(operator: Operator) -> str:
    """The code with which a budget is closed; the coordinator itself runs, and so does what needs no privacy."""
    answer = await submitted(operator, private(), rounds=1)
    assert answer.status_code == 507, answer.text
    assert (await operator.call("GET", "/v1/populations/people/budget")).json()["code"] == answer.json()["code"]
    assert (await submitted(operator, None, rounds=1)).status_code == 201
    return str(answer.json()["code"])


def test_the_checkpoint_is_the_newest_committed_entry(kept: Settings) -> None:
    async def work() -> None:
        async with in_process(kept) as operator:
            await one_round(operator)
            newest, checkpoint = end_of(kept)
            assert newest == checkpoint == (await budget(operator))["entries"] == 3

    run(work())


@pytest.mark.parametrize("how", ["cut", "old backup"])
def test_a_ledger_that_has_lost_its_end_spends_nothing(kept: Settings, how: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with in_process(kept) as operator:
            await one_round(operator)
        if how == "old backup":
            shutil.copytree(kept.folder, tmp_path / "backup")
            async with in_process(kept) as operator:
                assert (await submitted(operator, private(), rounds=1)).status_code == 201
            shutil.rmtree(kept.folder)
            shutil.copytree(tmp_path / "backup", kept.folder)
        else:
            cut(kept, 1)
        async with in_process(kept) as operator:
            assert await closed(operator) == "ledger_cut"
        # Whoever takes the checkpoint away accepts what is lost.
        assert kept.ledger_checkpoints is not None
        (kept.ledger_checkpoints / "people.json").unlink()
        async with in_process(kept) as operator:
            assert (await submitted(operator, private(), rounds=1)).status_code == 201

    run(work())


def test_a_ledger_may_be_longer_than_its_checkpoint(kept: Settings) -> None:
    """As after a kill between the commit and the file."""

    async def work() -> None:
        assert kept.ledger_checkpoints is not None
        file = kept.ledger_checkpoints / "people.json"
        async with in_process(kept) as operator:
            await one_round(operator)
            before = file.read_bytes()
            assert (await submitted(operator, private(), rounds=1)).status_code == 201
        file.write_bytes(before)
        async with in_process(kept) as operator:
            assert (await submitted(operator, private(), rounds=1)).status_code == 201
        newest, checkpoint = end_of(kept)
        assert newest == checkpoint > 3

    run(work())


@pytest.mark.parametrize("damage", ["text", "number", "another's"])
def test_a_checkpoint_that_this_coordinator_did_not_write_closes_the_budget(kept: Settings, damage: str) -> None:
    async def work() -> None:
        assert kept.ledger_checkpoints is not None
        file = kept.ledger_checkpoints / "people.json"
        async with in_process(kept) as operator:
            await one_round(operator)
        entry = json.loads(file.read_text())
        changed = {"number": {**entry, "sequence": 1}, "another's": {**entry, "population": "others"}}
        file.write_text("no entry" if damage == "text" else json.dumps(changed[damage]))
        async with in_process(kept) as operator:
            assert await closed(operator) == "ledger_checkpoint_damaged"

    run(work())


@pytest.mark.parametrize("how", ["behind", "absent"])
def test_a_start_writes_the_checkpoint_that_a_kill_or_nobody_has_written(kept: Settings, how: str) -> None:
    async def work() -> None:
        assert kept.ledger_checkpoints is not None
        file = kept.ledger_checkpoints / "people.json"
        async with in_process(kept) as operator:
            await one_round(operator)
            before = file.read_bytes()
            assert (await submitted(operator, private(), rounds=1)).status_code == 201
        if how == "behind":
            file.write_bytes(before)
        else:
            file.unlink()
        async with in_process(kept):
            newest, checkpoint = end_of(kept)
            assert newest == checkpoint > 2
        cut(kept, 1)
        async with in_process(kept) as operator:
            assert await closed(operator) == "ledger_cut"

    run(work())


def test_a_checkpoint_that_cannot_be_written_stops_nothing(kept: Settings) -> None:
    async def work() -> None:
        assert kept.ledger_checkpoints is not None
        async with in_process(kept) as operator:
            shutil.rmtree(kept.ledger_checkpoints)
            await one_round(operator)
            assert (await budget(operator))["experiments"][0]["rounds_spent"] == 1
            # The next entry tries again.
            kept.ledger_checkpoints.mkdir()
            assert (await submitted(operator, private(), rounds=1)).status_code == 201
            newest, checkpoint = end_of(kept)
            assert newest == checkpoint

    run(work())


def test_a_folder_that_would_be_lost_with_the_database_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        inside = tmp_path / "state" / "ledgers"
        async with in_process(Settings(folder=tmp_path / "state", ledger_checkpoints=inside, prestart=False)):
            raise AssertionError("it has started")

    with pytest.raises(ConfigurationError, match="in the coordinator's own folder") as refused:
        run(work())
    assert refused.value.reason == "ledger_checkpoints"
