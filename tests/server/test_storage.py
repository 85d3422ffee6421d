"""Storage: a full disk, a second coordinator, a newer database, what a crash left; and leases under any order of
events.
"""

import asyncio
import errno
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from server_kit import Device, Opener, Operator, fleet, in_process, sha256, update
from sqlalchemy import create_engine, select
from sqlalchemy import text as sql
from sqlalchemy.exc import DBAPIError

from coterie.errors import ConfigurationError, InternalError, StorageError
from coterie.protocol.device import Task
from coterie.server.faults import COMMIT_POINTS, TRANSACTIONS, CoordinatorFaults
from coterie.server.settings import Settings
from coterie.server.store.blobs import BlobStore, storage_full
from coterie.server.store.dialect import sqlite_url
from coterie.server.store.engine import Database
from coterie.server.store.housekeeping import ORPHAN_AGE_S
from coterie.server.store.migrate import current, head, migrate
from coterie.server.store.objects import open_objects
from coterie.server.store.tables import Base, TaskRow
from tests.empty_database import prepare


def with_operator(coordinator: Opener, check: Callable[[Operator], Awaitable[None]], **changes: object) -> None:
    """Run a check against a fresh coordinator."""

    async def work() -> None:
        async with coordinator(**changes) as operator:
            await check(operator)

    asyncio.run(work())


class FullDisk:
    """Makes every write of the blob store fail for want of space, until there is room again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = True
        write = BlobStore._write  # pyright: ignore[reportPrivateUsage]

        async def no_room(store: BlobStore, key: str, stream: AsyncIterator[bytes]) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            await write(store, key, stream)

        adopt = BlobStore._adopt  # pyright: ignore[reportPrivateUsage]

        async def nor_for_files(store: BlobStore, key: str, file: Path) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            await adopt(store, key, file)

        monkeypatch.setattr(BlobStore, "_write", no_room)
        monkeypatch.setattr(BlobStore, "_adopt", nor_for_files)


def test_a_full_disk_refuses_an_update_and_keeps_what_was_accepted(
    coordinator: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(operator: Operator) -> None:
        first, second = await fleet(operator, await operator.population(), 2)
        experiment = await operator.experiment(rounds=1)
        one, two = await first.task(), await second.task()
        assert (await first.upload(one, update(one))).json()["state"] == "accepted"
        disk = FullDisk(monkeypatch)
        answer = await second.upload(two, update(two))
        assert (answer.status_code, answer.json()["code"]) == (507, "storage_full")
        blobs = operator.app.state.coordinator.storage.blobs
        assert [each.digest for each in await blobs.stored("updates")] == [sha256(update(one))]
        (entry,) = await operator.rounds(experiment)
        assert (entry["state"], entry["accepted"], entry["leased"]) == ("collecting", 1, 1)
        disk.full = False
        assert (await second.upload(two, update(two))).json()["state"] == "accepted"
        await operator.until_round(experiment, 1, "committed")

    with_operator(coordinator, check)


def test_a_round_waits_for_room_for_its_result(coordinator: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(operator: Operator) -> None:
        (device,) = await fleet(operator, await operator.population(), 1)
        experiment = await operator.experiment(rounds=1, cohort=1)
        task = await device.task()
        write = BlobStore._write  # pyright: ignore[reportPrivateUsage]
        refused = 0

        async def no_room_for_results(store: BlobStore, key: str, stream: AsyncIterator[bytes]) -> None:
            nonlocal refused
            if key.startswith("blobs/") and refused < 2:
                refused += 1
                raise OSError(errno.ENOSPC, "No space left on device")
            await write(store, key, stream)

        monkeypatch.setattr(BlobStore, "_write", no_room_for_results)
        assert (await device.upload(task, update(task))).status_code == 200
        entry = await operator.until_round(experiment, 1, "committed")
        assert refused == 2 and entry["accepted"] == 1

    with_operator(coordinator, check)


def test_every_way_in_which_a_disk_says_that_it_is_full_is_understood() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        assert isinstance(storage_full(OSError(number, "no")), StorageError)
    wrapped = ValueError("outer")
    wrapped.__cause__ = RuntimeError("Generic LocalFileSystem error: No space left on device (os error 28)")
    assert isinstance(storage_full(wrapped), StorageError)
    assert storage_full(OSError(errno.EACCES, "no")) is None


def test_a_broken_off_body_leaves_nothing(tmp_path: Path) -> None:
    store = BlobStore(open_objects(tmp_path.as_uri()), tmp_path, CoordinatorFaults())

    async def broken() -> AsyncIterator[bytes]:
        yield b"some"
        raise ConnectionError

    async def work() -> None:
        with pytest.raises(ConnectionError):
            await store.receive(broken(), limit=100)
        assert list(store.scratch.iterdir()) == []

    asyncio.run(work())


def test_a_second_coordinator_on_the_same_folder_is_refused_with_the_first_ones_pid(
    coordinator: Opener, settings: Settings
) -> None:
    async def check(operator: Operator) -> None:
        with pytest.raises(ConfigurationError, match=str(os.getpid())) as caught:
            async with in_process(settings):
                pass
        assert caught.value.reason == "folder_in_use" and caught.value.hint
        assert (await operator.http.get("/readyz")).status_code == 200

    with_operator(coordinator, check)


def test_migrations_make_exactly_the_tables(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "new.db")
    assert current(url) is None
    assert migrate(url) == migrate(url) == current(url) == head()
    engine = create_engine(f"sqlite:///{tmp_path / 'new.db'}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_a_database_from_a_newer_version_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    migrate(sqlite_url(path))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(ConfigurationError, match="9999") as caught:
        migrate(sqlite_url(path))
    assert caught.value.reason == "database_newer" and current(sqlite_url(path)) == "9999"


def test_the_database_is_durable_and_writes_do_not_fail_for_locks(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        database: Database = operator.app.state.coordinator.storage.database
        async with database.read() as session:
            connection = await session.connection()
            for pragma, value in (("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)):
                assert (await connection.exec_driver_sql(f"PRAGMA {pragma}")).scalar() == value
        made = await asyncio.gather(*(operator.population(f"people-{number}") for number in range(20)))
        assert len(set(made)) == 20

    with_operator(coordinator, check)


def test_an_error_of_the_database_tells_no_parameter(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        database = operator.app.state.coordinator.storage.database
        with pytest.raises(DBAPIError) as caught:
            async with database.read() as session:
                await session.execute(sql("SELECT * FROM nowhere WHERE x = :x"), {"x": "the-secret-of-the-house"})
        assert "nowhere" in str(caught.value) and "the-secret" not in str(caught.value)

    with_operator(coordinator, check)


def test_a_transaction_without_a_commit_point_cannot_begin(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        with pytest.raises(InternalError, match="TRANSACTIONS"):
            async with operator.app.state.coordinator.storage.database.write("sideways"):
                pass

    with_operator(coordinator, check)


def test_faults_name_a_point_and_a_time() -> None:
    struck: list[int] = []
    faults = CoordinatorFaults("accept.after_commit", 2, lambda: struck.append(1))
    for _ in range(3):
        faults.reach("accept.after_commit")
        faults.reach("accept.before_commit")
    assert struck == [1]
    assert CoordinatorFaults.from_environment({"COTERIE_FAULT": "commit.before_commit:3"}).reached == {}
    for text in ("nowhere:1", "accept.after_commit:0", "accept.after_commit:x"):
        with pytest.raises(ConfigurationError):
            CoordinatorFaults.from_environment({"COTERIE_FAULT": text})
    assert set(COMMIT_POINTS) >= {f"{name}.{side}_commit" for name in TRANSACTIONS for side in ("before", "after")}


def test_what_a_crash_left_is_swept_when_it_is_old(coordinator: Opener, settings: Settings) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            kept = await operator.put(b"kept", "graph")
            first, second = await fleet(operator, await operator.population(), 2)
            experiment = await operator.experiment(rounds=1)
            one = await first.task()
            await first.upload(one, update(one))
            two = await second.task()
            await second.upload(two, update(two), part=update(two)[:50])
        folder = settings.folder / "blobs"
        orphans = [folder / "blobs" / "ab" / ("ab" + "0" * 62), folder / "updates" / "cd" / ("cd" + "0" * 62)]
        for orphan in orphans:
            orphan.parent.mkdir(parents=True, exist_ok=True)
            orphan.write_bytes(b"never promised")
        young = folder / "blobs" / "ef" / ("ef" + "0" * 62)
        young.parent.mkdir()
        young.write_bytes(b"whose row another process may be about to write")
        hour_ago = time.time() - 2 * ORPHAN_AGE_S
        for path in [path for path in folder.rglob("*") if path.is_file() and path != young]:
            os.utime(path, (hour_ago, hour_ago))
        (folder / "scratch" / "body-left").write_bytes(b"half")
        async with coordinator() as operator:
            while any(orphan.exists() for orphan in orphans):
                await asyncio.sleep(0.02)
            assert young.exists()
            assert list((folder / "scratch").iterdir()) == []
            assert await operator.app.state.coordinator.storage.blobs.parts.tasks() == {two.id}
            assert (await operator.http.get(f"/v1/blobs/{kept.sha256}")).content == b"kept"
            # The accepted update survived, and the half upload goes on where it was.
            second.http = operator.http
            held = await second.send("HEAD", f"/v1/device/tasks/{two.id}/update")
            assert held.headers["Upload-Offset"] == "50"
            assert (await second.upload(two, update(two), offset=50)).json()["state"] == "accepted"
            entry = await operator.until_round(experiment, 1, "committed")
            assert entry["accepted"] == 2

    asyncio.run(work())


def test_the_admin_token_is_made_once_and_for_its_owner_only(coordinator: Opener, settings: Settings) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            first = operator.app.state.coordinator.identity.first_token
            assert first is not None and first.text == operator.token and first.secret not in repr(first)
        async with coordinator() as operator:
            assert operator.app.state.coordinator.identity.first_token is None
            assert first.text == operator.token

    asyncio.run(work())
    assert (settings.folder / "admin.token").stat().st_mode & 0o777 == 0o600
    assert first_secret_is_nowhere(settings.folder)


def first_secret_is_nowhere(folder: Path) -> bool:
    """The secret of the admin token is in its file and in no other."""
    secret = (folder / "admin.token").read_text().strip().rsplit("_", 1)[1].encode()
    others = [path for path in folder.rglob("*") if path.is_file() and path.name != "admin.token"]
    return not any(secret in path.read_bytes() for path in others)


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["check in", "upload", "abort", "refuse", "progress"])), max_size=25
)


@hypothesis_settings(max_examples=12)
@given(steps=STEPS)
def test_leases_and_rounds_agree_whatever_devices_do(
    steps: list[tuple[int, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The engine's counts are the rows' counts after every request, and no device ever holds two tasks."""
    folder = prepare(tmp_path_factory.mktemp("leases") / "state")
    asyncio.run(play(steps, Settings(folder=folder, log_level="error", prestart=False)))


async def play(steps: list[tuple[int, str]], settings: Settings) -> None:
    """Let four devices do these things, in this order."""
    async with in_process(settings) as operator:
        devices = await fleet(operator, await operator.population(), 4)
        experiment = await operator.experiment(rounds=3, cohort=2, over_selection=1.5)
        tasks: dict[int, Task] = {}
        for who, what in steps:
            await act(devices[who], what, tasks, who)
            await assert_agree(operator, experiment)


async def act(device: Device, what: str, tasks: dict[int, Task], who: int) -> None:
    """One thing that a device does; with a task that may be over."""
    if what == "check in" or who not in tasks:
        found = (await device.check_in())["task"]
        if found is not None:
            tasks[who] = Task.model_validate(found)
        return
    task = tasks[who]
    if what == "upload":
        answer = await device.upload(task, update(task))
        assert answer.status_code in (200, 409, 410), answer.text
    elif what == "refuse":
        assert (await device.upload(task, update(task, weight=10_000))).status_code in (422, 409, 410)
    elif what == "abort":
        body = b'{"phase":"training","code":"tired"}'
        answer = await device.send("POST", f"/v1/device/tasks/{task.id}/abort", body)
        assert answer.status_code in (204, 409, 410)
    else:
        answer = await device.send("POST", f"/v1/device/tasks/{task.id}/progress", b'{"phase":"training"}')
        assert answer.status_code in (200, 409, 410)


async def assert_agree(operator: Operator, experiment: str) -> None:
    """Rows and engine say the same."""
    database: Database = operator.app.state.coordinator.storage.database
    async with database.read() as session:
        rows = (await session.execute(select(TaskRow).where(TaskRow.experiment == experiment))).scalars().all()
    holders = [row.device for row in rows if row.state == "leased"]
    assert len(set(holders)) == len(holders)
    for entry in await operator.rounds(experiment):
        own = [row.state for row in rows if row.round == entry["round"]]
        assert own.count("accepted") <= entry["accepted"] <= 2
        if entry["state"] == "collecting":
            assert (own.count("leased"), own.count("accepted")) == (entry["leased"], entry["accepted"])
            assert entry["failed"] == own.count("aborted") + own.count("refused") + own.count("expired")


def test_nothing_of_a_coordinator_is_for_other_users_even_in_a_folder_that_was_there(settings: Settings) -> None:
    async def work() -> None:
        async with in_process(settings) as operator:
            (device,) = await fleet(operator, await operator.population(), 1)
            await operator.experiment(rounds=1, cohort=1)
            task = await device.task(5)
            assert (await device.upload(task, update(task))).is_success
            await operator.finished(task.experiment)

    settings.folder.chmod(0o755)
    (settings.folder / "coterie.db").chmod(0o644)
    before = os.umask(0o022)
    try:
        asyncio.run(work())
    finally:
        os.umask(before)
    assert settings.folder.stat().st_mode & 0o777 == 0o700
    assert (settings.folder / "coterie.db").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in settings.folder.iterdir() if path.stat().st_mode & 0o077] == []
