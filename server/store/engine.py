"""The database: opening it, reading it, and the one way to write to it.

When a commit returns, it is on the disk. Writes queue on one connection, so a transaction that has started never fails
for a lock; reads run beside them on connections of their own and see the last commit. How the dialect does that is in
`dialect.py`.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from coterie.errors import InternalError
from coterie.server.bell import Bell
from coterie.server.faults import QUIET, TRANSACTIONS, CoordinatorFaults
from coterie.server.store import events
from coterie.server.store.dialect import StoredFile, reading_engine, writing_engine

_CAN_WAIT: Final = "can_wait"


def can_wait(session: AsyncSession) -> None:
    """Say that what this transaction changes makes nothing due at once: the bell rings a little later for it, once for
    all that come together. A request whose change nobody waits for costs the driver no look of its own.
    """
    session.info[_CAN_WAIT] = True


class Database:
    """Sessions for reading and for writing. One request is one transaction."""

    def __init__(self, url: str, faults: CoordinatorFaults, bell: Bell) -> None:
        self._faults = faults
        self._bell = bell
        self._file = StoredFile.of(url)
        self.commits = 0
        """How often this process has committed: what was read before the last time may be out of date."""
        self._writer = writing_engine(url, self._file)
        self._reader = reading_engine(url, self._file)
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
