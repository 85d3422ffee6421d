"""What holds secrets is for its user alone, whoever made it before."""

import os
import sqlite3
import stat
from collections.abc import Generator
from pathlib import Path

import pytest

from coterie.errors import StorageError
from coterie.protocol.private_files import make_private_database, make_private_folder


@pytest.fixture(autouse=True)
def open_umask() -> Generator[None]:
    """The most careless umask."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    """The permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_database_and_what_sqlite_keeps_beside_it_are_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.db"
    make_private_folder(path.parent)
    make_private_database(path)
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE rows (id INTEGER)")
    found = {each.name: mode(each) for each in path.parent.iterdir()}
    database.close()
    assert found == {"rows.db": 0o600, "rows.db-wal": 0o600, "rows.db-shm": 0o600}
    assert mode(path.parent) == 0o700


def test_what_was_open_to_others_is_closed_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir(mode=0o755)
    for name in ("rows.db", "rows.db-wal", "rows.db-shm", "rows.db-journal"):
        (folder / name).write_bytes(b"")
        (folder / name).chmod(0o644)
    (folder / "rows.db").write_bytes(b"content")
    make_private_folder(folder)
    make_private_database(folder / "rows.db")
    assert mode(folder) == 0o700
    assert {mode(each) for each in folder.iterdir()} == {0o600}
    assert (folder / "rows.db").read_bytes() == b"content"


def test_a_folder_for_everybody_stays_one(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    make_private_folder(shared)
    assert mode(shared) == 0o1777


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("")
    with pytest.raises(StorageError, match="folder"):
        make_private_folder(tmp_path / "folder")
