"""Ledgers as rows: nobody overspends whoever writes at once, and a chain that does not hold pays for nothing."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from server_kit import SCHEMA
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import InternalError, StorageError
from coterie.privacy.ledger.budget import YEAR_MS, Excess
from coterie.privacy.ledger.chain import Head, check, commitment, link
from coterie.privacy.ledger.events import EACH, YEAR, Bound, Limit, RefundCause, Reserve
from coterie.privacy.ledger.state import CostState, State
from coterie.protocol.canonical import canonical_json
from coterie.protocol.conversion import to_json
from coterie.protocol.signing import SigningKey
from coterie.server.bell import Bell
from coterie.server.faults import CoordinatorFaults
from coterie.server.store import ledger as store
from coterie.server.store import populations
from coterie.server.store.dialect import sqlite_url
from coterie.server.store.engine import Database
from coterie.server.store.ledger import Ledger
from coterie.server.store.tables import SecretRow
from tests.empty_database import prepare
from tests.patience import patience

KEY = SigningKey.from_seed(b"k" * 32)
ONE = ('{"epsilon":1}',)


def adding(costs: Sequence[str], delta: float) -> float:
    """Epsilons add up: basic composition."""
    return sum(json.loads(text)["epsilon"] for text in costs)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run an asynchronous test."""
    asyncio.run(work)


@asynccontextmanager
async def opened(folder: Path, count: int = 1) -> AsyncGenerator[list[Database], None]:
    """The same database, opened by so many writers, with a population in it."""
    path = (folder / "state" if (folder / "state").exists() else prepare(folder / "state")) / "coterie.db"
    made = [Database(sqlite_url(path), CoordinatorFaults(), Bell()) for _ in range(count)]
    try:
        async with made[0].write("population") as session:
            if await populations.find(session, "people") is None:
                await populations.add(session, "people", canonical_json(to_json(SCHEMA)).decode(), SCHEMA.digest)
        yield made
    finally:
        for database in made:
            await database.close()


async def limited(database: Database, ledger: Ledger, **limits: float) -> None:
    """Set limits: ``each``, ``year``."""
    async with database.write("policy") as session:
        for name, epsilon in limits.items():
            await ledger.limit(session, "people", {"each": EACH, "year": YEAR}[name], Bound(epsilon, 1e-6))


async def standing(database: Database, ledger: Ledger) -> dict[tuple[str, int], CostState]:
    """What has become of each round's cost."""
    async with database.read() as session:
        _, state = await ledger.read(session, "people")
    return {place: charge.state for place, charge in state.charges.items()}


def test_writers_at_the_same_time_cannot_overspend(tmp_path: Path) -> None:
    """Two databases, as two replicas have, each with what it remembers itself; forty rounds want what nine may have."""

    async def work() -> None:
        async with opened(tmp_path, 2) as databases:
            ledgers = [Ledger(KEY, adding), Ledger(KEY, adding)]
            await limited(databases[0], ledgers[0], year=9)

            async def begin(place: int) -> Excess | None:
                async with databases[place % 2].write("commit") as session:
                    return await ledgers[place % 2].reserve(session, "people", f"exp_{place}", 1, ONE)

            answers = await asyncio.gather(*(begin(place) for place in range(40)))
            assert sum(answer is None for answer in answers) == 9
            assert {answer.reason for answer in answers if answer is not None} == {"budget_year"}
            for database, ledger in zip(databases, ledgers, strict=True):
                assert len(await standing(database, ledger)) == 9

    run(work())


def test_writers_in_threads_of_their_own_cannot_overspend(tmp_path: Path) -> None:
    """As above with two event loops in two threads, which nothing but the database keeps apart."""
    allowed: list[int] = []

    async def prepare_limit() -> None:
        async with opened(tmp_path) as (database,):
            await limited(database, Ledger(KEY, adding), year=7)

    async def writer(number: int) -> None:
        async with opened(tmp_path) as (database,):
            ledger = Ledger(KEY, adding)
            for place in range(12):
                async with database.write("commit") as session:
                    if await ledger.reserve(session, "people", f"exp_{number}_{place}", 1, ONE) is None:
                        allowed.append(place)

    run(prepare_limit())
    threads = [threading.Thread(target=run, args=(writer(number),)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(60))
    assert len(allowed) == 7


@dataclass(frozen=True)
class Overtaken(Ledger):
    """A ledger whose writer is overtaken by another while it thinks: not every database queues writers."""

    others: list[Ledger] = field(default_factory=list[Ledger])
    session: list[AsyncSession] = field(default_factory=list[AsyncSession])

    async def _excess(self, state: State, experiment: str, cost: Sequence[str]) -> Excess | None:
        found = await super()._excess(state, experiment, cost)
        if self.others:
            await self.others.pop().reserve(self.session[0], "people", "exp_other", 1, ONE)
        return found


@pytest.mark.parametrize(("year", "allowed"), [(1.0, False), (2.0, True)], ids=["no room", "room"])
def test_who_was_overtaken_decides_anew(tmp_path: Path, year: float, allowed: bool) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (database,):
            await limited(database, Ledger(KEY, adding), year=year)
            async with database.write("commit") as session:
                slow = Overtaken(KEY, adding, others=[Ledger(KEY, adding)], session=[session])
                found = await slow.reserve(session, "people", "exp_slow", 1, ONE)
            assert (found is None) == allowed
            seen = await standing(database, Ledger(KEY, adding))
            assert set(seen) == {("exp_other", 1), ("exp_slow", 1)} if allowed else {("exp_other", 1)}

    run(work())


def test_an_entry_for_an_end_that_has_moved_is_not_written(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (database,):
            ledger = Ledger(KEY, adding)
            async with database.read() as session:
                stale, _ = await ledger.read(session, "people")
            async with database.write("commit") as session:
                await ledger.reserve(session, "people", "exp_a", 1, ONE)
            late = link(stale, 5, Reserve(experiment="exp_b", round=1, cost=ONE), KEY)
            async with database.write("commit") as session:
                assert not await store.append(session, stale, late)
            assert set(await standing(database, ledger)) == {("exp_a", 1)}

    run(work())


def test_a_rolled_back_entry_is_forgotten(tmp_path: Path) -> None:
    """What this process remembers of a chain may hold an entry that never was: its digest tells."""

    async def work() -> None:
        async with opened(tmp_path) as (database,):
            ledger = Ledger(KEY, adding)
            await limited(database, ledger, each=3)
            with pytest.raises(ZeroDivisionError):
                async with database.write("commit") as session:
                    await ledger.reserve(session, "people", "exp_a", 1, ONE)
                    raise ZeroDivisionError
            assert await standing(database, ledger) == {}
            async with database.write("commit") as session:
                await ledger.reserve(session, "people", "exp_b", 1, ONE)
            assert set(await standing(database, ledger)) == {("exp_b", 1)}

    run(work())


def test_a_round_pays_once_and_keeps_its_noise(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, 2) as (one, other):
            ledger, restarted = Ledger(KEY, adding), Ledger(KEY, adding)
            async with one.write("commit") as session:
                await ledger.reserve(session, "people", "exp_a", 1, ONE)
            async with one.read() as session:
                with pytest.raises(InternalError, match="was not paid for, so its sum is not opened"):
                    await ledger.noise_seed(session, "people", "exp_a", 1)
            async with one.write("spent") as session:
                seed = await ledger.spend_with_noise(session, "people", "exp_a", 1)
            async with other.write("spent") as session:
                assert await restarted.spend_with_noise(session, "people", "exp_a", 1) == seed
            async with one.read() as session:
                assert await restarted.noise_seed(session, "people", "exp_a", 1) == seed
                head, state = await restarted.read(session, "people")
                secrets = (await session.execute(select(SecretRow.name).where(SecretRow.name.like("noise/%")))).all()
            charge = state.charge("exp_a", 1)
            assert (len(seed), head.sequence, len(secrets)) == (32, 2, 1)
            assert charge is not None and charge.noise == commitment(seed) and charge.state is CostState.SPENT
            async with one.write("aggregated") as session:
                await ledger.forget_noise(session, "exp_a", 1)
            async with other.write("spent") as session:
                with pytest.raises(InternalError, match="seed of its noise is gone"):
                    await restarted.spend_with_noise(session, "people", "exp_a", 1)
        rest = [path for path in (tmp_path / "state").iterdir() if seed in path.read_bytes()]
        assert not rest, "the seed is overwritten, in the database and in what was written ahead"

    run(work())


def test_only_what_is_reserved_is_refunded_or_spent(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (database,):
            ledger = Ledger(KEY, adding)
            async with database.write("commit") as session:
                for number in (1, 2):
                    await ledger.reserve(session, "people", "exp_a", number, ONE)
                    await ledger.reserve(session, "people", "exp_a", number, ONE)  # a repetition costs nothing
                await ledger.spend(session, "people", "exp_a", 1)
                await ledger.spend(session, "people", "exp_a", 1)
                for number in (1, 2, 3):
                    await ledger.refund(session, "people", "exp_a", number, RefundCause.ABANDONED)
            assert await standing(database, ledger) == {
                ("exp_a", 1): CostState.SPENT,
                ("exp_a", 2): CostState.REFUNDED,
            }
            for number in (2, 3):
                with pytest.raises(InternalError, match="has reserved no budget"):
                    async with database.write("spent") as session:
                        await ledger.spend(session, "people", "exp_a", number)

    run(work())


def test_a_clock_that_is_set_back_gains_no_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 50 * YEAR_MS

    async def work() -> None:
        async with opened(tmp_path) as (database,):
            ledger = Ledger(KEY, adding)
            monkeypatch.setattr(store, "now_ms", lambda: now)
            await limited(database, ledger, year=2)

            async def begin(experiment: str) -> str | None:
                async with database.write("commit") as session:
                    found = await ledger.reserve(session, "people", experiment, 1, ONE)
                    if found is None:
                        await ledger.spend(session, "people", experiment, 1)
                return None if found is None else found.reason

            assert await begin("exp_a") is None
            monkeypatch.setattr(store, "now_ms", lambda: now - 2 * YEAR_MS)
            assert [await begin("exp_b"), await begin("exp_c")] == [None, "budget_year"]
            monkeypatch.setattr(store, "now_ms", lambda: now + YEAR_MS // 2)
            assert await begin("exp_c") == "budget_year", "the entry of the wrong clock is as young as the one before"
            monkeypatch.setattr(store, "now_ms", lambda: now + YEAR_MS + 1)
            assert await begin("exp_c") is None
            async with database.read() as session:
                times = [entry.at for entry in await store.entries(session, "people", 0, 100)]
            assert times == sorted(times)

    run(work())


DAMAGE: dict[str, tuple[str, str]] = {
    "a cost was made smaller": (
        """UPDATE ledger SET event = replace(event, '"epsilon":1', '"epsilon":0.1') WHERE sequence = 2""",
        "broken at entry 2: its digest",
    ),
    "an entry was deleted": ("DELETE FROM ledger WHERE sequence = 2", "broken at entry 2: its number is 3"),
    "the end was cut off": ("DELETE FROM ledger WHERE sequence = 4", "broken at entry 4: entries are missing"),
    "an entry came from elsewhere": (
        "UPDATE ledger SET signature = 'AAAA' WHERE sequence = 3",
        "entry 3: its signature",
    ),
}


@pytest.mark.parametrize("name", sorted(DAMAGE))
def test_a_chain_that_does_not_hold_pays_for_nothing(tmp_path: Path, name: str) -> None:
    statement, why = DAMAGE[name]

    async def write() -> None:
        async with opened(tmp_path) as (database,):
            ledger = Ledger(KEY, adding)
            await limited(database, ledger, year=5)
            async with database.write("commit") as session:
                for number in (1, 2, 3):
                    await ledger.reserve(session, "people", "exp_a", number, ONE)

    async def read() -> None:
        async with opened(tmp_path) as (database,):
            with pytest.raises(StorageError, match=why) as caught:
                async with database.write("commit") as session:
                    await Ledger(KEY, adding).reserve(session, "people", "exp_a", 4, ONE)
            assert caught.value.reason == "ledger_broken"

    run(write())
    with sqlite3.connect(tmp_path / "state" / "coterie.db") as connection:
        connection.execute(statement)
    connection.close()
    run(read())


def test_the_rows_are_the_pure_chain(tmp_path: Path) -> None:
    """What an auditor reads from the rows holds by the pure check, and limits that stay as they are get no entry."""

    async def work() -> None:
        async with opened(tmp_path) as (database,):
            ledger = Ledger(KEY, adding)
            await limited(database, ledger, year=5, each=2)
            await limited(database, ledger, year=5, each=2)
            async with database.write("policy") as session:
                await ledger.limit(session, "people", EACH, None)
                entries = await store.entries(session, "people", 0, 100)
            verdict = check(entries, head=Head(population="people"), public=KEY.public)
            assert verdict.broken is None
            assert [entry.event for entry in entries] == [
                Limit(scope=YEAR, bound=Bound(5.0, 1e-6)),
                Limit(scope=EACH, bound=Bound(2.0, 1e-6)),
                Limit(scope=EACH, bound=None),
            ]

    run(work())
