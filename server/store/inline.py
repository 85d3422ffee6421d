"""SQLite on the event loop's own thread.

A statement of the coordinator takes tens of microseconds; handing it to another thread and back takes longer than
that. So statements run where they are called. What waits for the disk or for another process does not: a commit, and
the beginning of a transaction while somebody else writes, run in a thread.

`InlineConnection` and `InlineCursor` have the methods of aiosqlite's connection and cursor that SQLAlchemy's dialect
calls, so the dialect itself is unchanged.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

BUSY_TIMEOUT_MS: Final = 10_000
_PRAGMAS: Final = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    # The seed of a round's noise is overwritten when its row is deleted.
    "secure_delete=ON",
)


class InlineCursor:
    """A cursor whose calls are done when they return."""

    def __init__(self, connection: "InlineConnection") -> None:
        self._connection = connection
        self._cursor = connection.raw.cursor()

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Self:
        """Run one statement. Where another process holds the lock, it is tried again in a thread."""
        try:
            self._cursor.execute(sql, parameters)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            await self._connection.patiently(lambda: self._cursor.execute(sql, parameters))
        return self

    async def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> Self:
        """Run one statement for each row of parameters."""
        self._cursor.executemany(sql, parameters)
        return self

    async def fetchone(self) -> Any:
        """The next row, None after the last."""
        return self._cursor.fetchone()

    async def fetchmany(self, size: int | None = None) -> list[Any]:
        """The next rows."""
        return self._cursor.fetchmany(self._cursor.arraysize if size is None else size)

    async def fetchall(self) -> list[Any]:
        """All rows that are left."""
        return self._cursor.fetchall()

    async def close(self) -> None:
        """Let go of the statement."""
        self._cursor.close()

    @property
    def description(self) -> Any:
        """The columns of the result; None of a statement without one."""
        return self._cursor.description

    @property
    def rowcount(self) -> int:
        """How many rows the statement changed; -1 where that means nothing."""
        return self._cursor.rowcount

    @property
    def lastrowid(self) -> int | None:
        """The id of the row inserted last."""
        return self._cursor.lastrowid

    @property
    def arraysize(self) -> int:
        """How many rows `fetchmany` gives."""
        return self._cursor.arraysize

    @arraysize.setter
    def arraysize(self, size: int) -> None:
        self._cursor.arraysize = size


class InlineConnection:
    """A connection that SQLAlchemy's dialect for aiosqlite takes for one of aiosqlite's. One transaction at a time."""

    def __init__(self, path: Path) -> None:
        # Transactions begin where the session says. A thread is used only while nobody else uses the connection.
        self.raw = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for pragma in _PRAGMAS:
            self.raw.execute(f"PRAGMA {pragma}")
        self._wait(0)
        self._connection: sqlite3.Connection | None = self.raw
        """By this name the dialect looks whether a connection is open."""

    @property
    def isolation_level(self) -> str | None:
        """None: the session begins and ends transactions."""
        return self.raw.isolation_level

    def cursor(self) -> InlineCursor:
        """A new cursor."""
        return InlineCursor(self)

    async def create_function(self, name: str, arity: int, function: Callable[..., Any], **options: Any) -> None:
        """Make a Python function one of SQL's; the dialect does so for regular expressions."""
        self.raw.create_function(name, arity, function, **options)

    async def commit(self) -> None:
        """Commit in a thread: it returns when the disk has it."""
        if self.raw.in_transaction:
            await self.patiently(self.raw.commit)

    async def rollback(self) -> None:
        """Give up what the transaction changed."""
        self.raw.rollback()

    async def close(self) -> None:
        """Close the file."""
        self.stop()

    def stop(self) -> None:
        """Close the file where nobody can wait for it."""
        self._connection = None
        self.raw.close()

    async def patiently(self, work: Callable[[], object]) -> None:
        """Do what may wait in a thread. Whoever is cancelled meanwhile hears of it when the work is done: nobody may
        use the connection before.
        """
        running = asyncio.ensure_future(asyncio.to_thread(self._waiting, work))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    def _waiting(self, work: Callable[[], object]) -> None:
        self._wait(BUSY_TIMEOUT_MS)
        try:
            work()
        finally:
            self._wait(0)

    def _wait(self, milliseconds: int) -> None:
        self.raw.execute(f"PRAGMA busy_timeout={milliseconds}")


async def connect(path: Path) -> InlineConnection:
    """Open a database file, which is made where it is missing."""
    return await asyncio.to_thread(InlineConnection, path)
