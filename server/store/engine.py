"""The database: opening it, reading it, and the one way to write to it.

SQLite runs in WAL mode with ``synchronous=FULL``: when a commit returns, it is on the disk. All that is particular to
SQLite is in this file and in `inline.py`. Writes queue on one connection and begin with ``BEGIN IMMEDIATE``, so a
transaction that has started never fails for a lock; reads run beside them on connections of their own and see the last
commit.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from sqlalchemy import event, make_url
from sqlalchemy.engine import Compiled
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.util import LRUCache

from coterie.errors import InternalError
from coterie.server.bell import Bell
from coterie.server.faults import QUIET, TRANSACTIONS, CoordinatorFaults
from coterie.server.store import events
from coterie.server.store.inline import connect
from coterie.server.store.intact import lost

_CAN_WAIT: Final = "can_wait"
_MOST_COMPILED: Final = 1000
"""How many statements are kept compiled. The code of the server has some three hundred."""


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


def can_wait(session: AsyncSession) -> None:
    """Say that what this transaction changes makes nothing due at once: the bell rings a little later for it, once for
    all that come together. A request whose change nobody waits for costs the driver no look of its own.
    """
    session.info[_CAN_WAIT] = True


def sqlite_url(path: Path) -> str:
    """The URL of an SQLite database file."""
    return f"sqlite+aiosqlite:///{path.resolve()}"


def _engine(url: str, *, begin: str, connections: int) -> AsyncEngine:
    # Errors quote their statement in the log; its parameters may be keys, digests of tokens or nonces.
    parts = make_url(url)
    options = {"compiled_cache": _compiled()}
    if parts.get_backend_name() != "sqlite":
        return create_async_engine(url, hide_parameters=True, execution_options=options)
    path = Path(parts.database or "")
    engine = create_async_engine(
        url,
        async_creator=lambda: connect(path),
        pool_size=connections,
        max_overflow=0,
        pool_timeout=60,
        hide_parameters=True,
        execution_options=options,
    )

    def begin_transaction(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine.sync_engine, "begin", begin_transaction)
    return engine


@dataclass(frozen=True)
class _StoredFile:
    """The file of a database, as it was when it was opened."""

    path: Path
    place: tuple[int, int]

    @staticmethod
    def of(url: str) -> "_StoredFile | None":
        """The file of an SQLite database; None for another kind, and before there is one."""
        parts = make_url(url)
        path = Path(parts.database or "")
        if parts.get_backend_name() != "sqlite" or not path.is_file():
            return None
        return _StoredFile(path, _place(path))

    def check(self) -> None:
        """Raise StorageError (``storage_lost``) where the file was deleted or replaced: a commit would be gone with the
        next restart.
        """
        if not self.path.is_file() or _place(self.path) != self.place:
            raise lost(self.path, "The coordinator's database")


def _place(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


class Database:
    """Sessions for reading and for writing. One request is one transaction."""

    def __init__(self, url: str, faults: CoordinatorFaults, bell: Bell) -> None:
        self._faults = faults
        self._bell = bell
        self._file = _StoredFile.of(url)
        self.commits = 0
        """How often this process has committed: what was read before the last time may be out of date."""
        self._writer = _engine(url, begin="BEGIN IMMEDIATE", connections=1)
        self._reader = _engine(url, begin="BEGIN", connections=4)
        self._writes = async_sessionmaker(self._writer, expire_on_commit=False, autoflush=True)
        self._reads = async_sessionmaker(self._reader, expire_on_commit=False, autoflush=False)

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncSession, None]:
        """A session that sees one consistent state and changes nothing."""
        async with self._reads() as session:
            yield session

    @asynccontextmanager
    async def write(self, point: str) -> AsyncGenerator[AsyncSession, None]:
        """One transaction: committed durably when the block ends, rolled back when it raises. ``point`` is its row of
        TRANSACTIONS.
        """
        if point not in TRANSACTIONS:
            raise InternalError(f"The transaction {point!r} is missing from coterie.server.faults.TRANSACTIONS.")
        async with self._writes() as session:
            yield session
            await events.number(session)
            await session.flush()
            if self._file is not None:
                self._file.check()
            self._faults.reach(f"{point}.before_commit")
            await session.commit()
            ring = self._bell.ring_soon if session.info.get(_CAN_WAIT) else self._bell.ring
        self.commits += 1
        self._faults.reach(f"{point}.after_commit")
        if point not in QUIET:
            ring()

    async def close(self) -> None:
        """Close every connection."""
        await self._writer.dispose()
        await self._reader.dispose()
