"""The database's URL, and all that depends on its dialect: SQLite, for now the only one.

SQLite runs in WAL mode with ``synchronous=FULL``: when a commit returns, it is on the disk. Its connections are in
`inline.py`; what a column or an index is called in another dialect stands beside it in `tables.py`.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.engine import URL, Compiled
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.util import LRUCache

from coterie.errors import ConfigurationError, StorageError
from coterie.protocol.private_files import make_private_database
from coterie.server.store.inline import InlineConnection, connect
from coterie.server.store.intact import lost

FILE: Final = "coterie.db"
"""The database in the coordinator's folder, where no other is named."""
_DRIVERS: Final = frozenset({"sqlite", "sqlite+aiosqlite"})
_HINT: Final = (
    "Give sqlite:////absolute/path.db (--database-url, COTERIE_DATABASE_URL), or leave it out for a file in the "
    "coordinator's folder."
)
_MOST_NAMED: Final = 500
"""How many values a statement names at most: SQLite bounds its parameters."""
_MOST_COMPILED: Final = 1000
"""How many statements are kept compiled. The code of the server has some three hundred."""


def batches(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """The values, as many at a time as one statement may name."""
    for first in range(0, len(values), _MOST_NAMED):
        yield values[first : first + _MOST_NAMED]


def sqlite_url(path: Path) -> str:
    """The URL of an SQLite database file."""
    return f"sqlite+aiosqlite:///{path.resolve()}"


def database_url(wanted: str | None, folder: Path) -> str:
    """The URL to open.

    wanted: as the operator gave it (COTERIE_DATABASE_URL); None for the file in the coordinator's folder.
    Raises ConfigurationError ``database_url`` for what is no URL of an SQLite file. A URL may hold a password: the
    message tells nothing of it but the dialect.
    """
    if wanted is None:
        return sqlite_url(folder / FILE)
    try:
        parts = make_url(wanted)
    except (ArgumentError, ValueError):
        raise _refused("The value given for the database is not a URL of one.") from None
    if parts.drivername not in _DRIVERS:
        raise _refused(f"The database's URL is of the kind {parts.drivername!r}; only SQLite is supported (sqlite).")
    if parts.host or parts.username or parts.query:
        raise _refused("The database's URL has a host, a user or options; that of an SQLite database has only a path.")
    if not parts.database or parts.database.startswith((":memory:", "file:")):
        raise _refused("The database's URL names no file; an SQLite database in memory would be gone with the process.")
    return sqlite_url(Path(parts.database))


def prepare(url: str) -> Path:
    """Make the file of a database that is for this user alone, empty if it is new. Returns its path.

    Raises ConfigurationError: ``database_exposed``, or ``database_url`` where it cannot be written.
    """
    path = file_of(url)
    try:
        make_private_database(path)
    except StorageError as error:
        raise _refused(f"The database {path} cannot be used: {error.message.rstrip('.')}.") from error
    return path


def file_of(url: str) -> Path:
    """The file of a database."""
    return Path(make_url(url).database or "")


def blocking_engine(url: str) -> Engine:
    """An engine for migrations. Alembic is synchronous; a short-lived synchronous connection before the asynchronous
    engines open is simpler than bridging the two.
    """
    return create_engine(URL.create("sqlite", database=str(file_of(url))), poolclass=NullPool)


def writing_engine(url: str, file: "StoredFile | None") -> AsyncEngine:
    """An engine on whose one connection writes queue. They begin with ``BEGIN IMMEDIATE``, so that a transaction that
    has started never fails for a lock.

    file: the only one that its connections may open.
    """
    return _engine(url, file, begin="BEGIN IMMEDIATE", connections=1)


def reading_engine(url: str, file: "StoredFile | None") -> AsyncEngine:
    """An engine whose reads run beside the writes and see the last commit.

    file: the only one that its connections may open.
    """
    return _engine(url, file, begin="BEGIN", connections=4)


def is_full(error: DBAPIError) -> bool:
    """Whether SQLite had no room on the disk."""
    text = str(error.orig)
    return "database or disk is full" in text or "disk I/O error" in text


@dataclass(frozen=True)
class StoredFile:
    """The file of a database, as it was when it was opened."""

    path: Path
    place: tuple[int, int]

    @staticmethod
    def of(url: str) -> "StoredFile | None":
        """The file; None before there is one."""
        path = file_of(url)
        return StoredFile(path, _place(path)) if path.is_file() else None

    def check(self) -> None:
        """Raise StorageError (``storage_lost``) where the file was deleted or replaced: a commit would be gone with the
        next restart.
        """
        if not self.path.is_file() or _place(self.path) != self.place:
            raise lost(self.path, "The coordinator's database")

    async def connect(self) -> InlineConnection:
        """Open the file, and no other: SQLite would make an empty one in its place.

        Raises StorageError (``storage_lost``) where it was deleted or replaced.
        """
        self.check()
        try:
            return await connect(self.path)
        except sqlite3.OperationalError:
            self.check()  # it went a moment ago
            raise


def _place(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _refused(message: str) -> ConfigurationError:
    return ConfigurationError(message, hint=_HINT, code="database_url")


class _Compiled(LRUCache[Any, Compiled]):
    """Statements as SQL, by what they are and the name of their dialect instead of its object, of which each engine has
    one of its own: every engine of a process is made in the same way.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(self._named(key), default)

    def __setitem__(self, key: Any, compiled: Compiled) -> None:
        super().__setitem__(self._named(key), compiled)

    @staticmethod
    def _named(key: Any) -> Any:
        dialect, *rest = key
        return (dialect.name, *rest)


@cache
def _compiled() -> _Compiled:
    """The statements that this process has compiled. To compile one takes longer than to run it, so that the engine
    which reads and the one which writes share them.
    """
    return _Compiled(_MOST_COMPILED)


def _engine(url: str, file: StoredFile | None, *, begin: str, connections: int) -> AsyncEngine:
    path = file_of(url)
    engine = create_async_engine(
        url,
        async_creator=(lambda: connect(path)) if file is None else file.connect,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=60,
        # Errors quote their statement in the log; its parameters may be keys, digests of tokens or nonces.
        hide_parameters=True,
        execution_options={"compiled_cache": _compiled()},
    )

    def begin_transaction(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine.sync_engine, "begin", begin_transaction)
    return engine
