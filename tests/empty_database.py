"""Folders of coordinators with an empty database in them."""

import sqlite3
import tempfile
from functools import cache
from pathlib import Path

from coterie.server.store.dialect import sqlite_url
from coterie.server.store.migrate import migrate


@cache
def migrated_database() -> bytes:
    """An empty database at the newest revision: migrating anew for every test would take most of their time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coterie.db"
        migrate(sqlite_url(path))
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        return path.read_bytes()


def prepare(folder: Path) -> Path:
    """Make a coordinator's folder with an empty database in it, unless there is a folder already."""
    if not folder.exists():
        folder.mkdir(parents=True, mode=0o700)
        (folder / "coterie.db").write_bytes(migrated_database())
    return folder
