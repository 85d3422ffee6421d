"""What a device's folder says of it, read without a client: also while one works there, and nothing is changed."""

import sqlite3
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coterie.client_sdk.device.history import HistoryEntry, StoredMembership, history_in, membership_in
from coterie.errors import ConfigurationError
from coterie.protocol.files import storage_error

FILE: Final = "device.db"
_TRIES: Final = 200
_PAUSE_S: Final = 0.02


@dataclass(frozen=True)
class Record:
    """A device's own memory.

    membership: None before it joined.
    history: the oldest task first.
    """

    membership: StoredMembership | None
    history: list[HistoryEntry]


def read_record(folder: Path) -> Record:
    """Read a folder. A process with a client of this folder asks that client instead (`Device.history`): reading the
    file here would drop the locks that it holds.

    Raises ConfigurationError for a folder that no client has worked in (``store_unknown``), and for one whose
    database cannot be read.
    """
    path = folder / FILE
    check_store(folder)
    try:
        with opened(path) as database:
            return Record(membership_in(database), history_in(database))
    except sqlite3.DatabaseError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error}.", hint="Start this folder's client once: it upgrades older files."
        ) from error
    except OSError as error:
        raise storage_error(path, error) from error


def check_store(folder: Path) -> None:
    """Raise ConfigurationError (``store_unknown``) for a folder that no client has worked in."""
    path = folder / FILE
    if not path.is_file():
        raise ConfigurationError(
            f"{folder} is not a client's folder: there is no {path}.",
            hint="Name the client with --name, or its folder with --store.",
            code="store_unknown",
        )


@contextmanager
def opened(path: Path) -> Generator[sqlite3.Connection]:
    """The database itself; while a client holds it, a copy of what stands in its file between two transactions."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=0)) as database:
        try:
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
        else:
            yield database
            return
    with closing(sqlite3.connect(":memory:")) as copy:
        copy.deserialize(_consistent_bytes(path))
        yield copy


def _consistent_bytes(path: Path) -> bytes:
    """The bytes of a database that another process writes, as they are between two of its transactions.

    A transaction first fills the journal, then changes pages in place, then empties the journal. So bytes that are read
    twice alike, with an empty journal before and after, are of no transaction's middle.
    """
    journal = path.with_name(f"{path.name}-journal")
    for _ in range(_TRIES):
        if not _bytes(journal):
            found = path.read_bytes()
            if not _bytes(journal) and path.read_bytes() == found and not _bytes(journal):
                return found
        time.sleep(_PAUSE_S)
    raise ConfigurationError(
        f"The client that uses {path.parent} has locked its database.",
        hint="Try again, or stop that client first.",
        code="store_in_use",
    )


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
