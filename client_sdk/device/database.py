"""The device's SQLite file: one process at a time, durable when a transaction ends, and nothing deleted left behind."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from coterie.errors import ConfigurationError, StorageError
from coterie.protocol.files import storage_error
from coterie.protocol.private_files import make_private_database


class ClientDatabase:
    """The file ``name`` in ``folder``, with the tables of ``schema``.

    What a row held is overwritten in the file when the row goes (``secure_delete``), and so is the journal
    (``TRUNCATE``): the secrets of an attempt do not outlive it in this file. What a file system or a flash disk keeps
    of overwritten blocks is beyond a program's reach.
    Raises ConfigurationError when another process uses the folder, StorageError when the disk refuses or the file is
    damaged.
    """

    def __init__(self, folder: Path, schema: str, name: str = "device.db") -> None:
        self._path = folder / name
        self._connection = _connect(self._path, schema)

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    def execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        """One statement outside of any transaction, for reading. Raises StorageError when the file is damaged."""
        try:
            return self._connection.execute(statement, values)
        except sqlite3.DatabaseError as error:
            raise _database_error(self._path, error) from error

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """All or nothing, and on the disk when it ends. Raises StorageError when the disk refuses or the file is
        damaged.
        """
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.DatabaseError):
                raise _database_error(self._path, error) from error
            raise


def _connect(path: Path, schema: str) -> sqlite3.Connection:
    make_private_database(path)
    try:
        database = sqlite3.connect(path, timeout=0.2, isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = TRUNCATE")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA secure_delete = ON")
        database.execute("BEGIN EXCLUSIVE")
        for statement in schema.split(";"):
            database.execute(statement)
        database.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_NOTADB:
            raise ConfigurationError(
                f"{path} is not a {path.stem}'s database: {error}.", hint="Choose another folder."
            ) from error
        raise _database_error(path, error) from error
    return database


def _database_error(path: Path, error: sqlite3.DatabaseError) -> Exception:
    """What SQLite's refusal is here; a mistake in a statement stays what it is."""
    if isinstance(error, sqlite3.OperationalError):
        if "locked" in str(error):
            return ConfigurationError(
                f"Another client uses the folder {path.parent}.",
                hint="Stop that client, or give this one a folder of its own.",
                code="store_in_use",
            )
        return storage_error(path.parent, OSError(28 if "full" in str(error) else 5, str(error)))
    # Errors of Python's own have no code.
    if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return error
    return StorageError(
        f"{path} is damaged: {error}.",
        hint="Check the disk, and restore the folder from a backup, or begin again in another folder.",
        path=str(path),
    )


def add_column(database: sqlite3.Connection, table: str, column: str, kind: str) -> None:
    """Give a table of an earlier version a column that it lacks.

    kind: its type and default, as SQL.
    """
    if column not in {row[1] for row in database.execute(f"PRAGMA table_info({table})")}:
        database.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
