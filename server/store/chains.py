"""The ends of hash chains: one row for each chain, moved by one conditional update.

Of two writers that have seen the same end only one goes on, on any number of replicas; the other reads the chain again
and decides anew. The audit trail is one chain, the privacy ledger of each population another.
"""

from dataclasses import dataclass
from typing import Any, Final, cast

from sqlalchemy import CursorResult, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import InternalError
from coterie.protocol.canonical import GENESIS
from coterie.server.store.tables import ChainRow

MOST_TRIES: Final = 16
"""How often a writer tries again because others were faster."""


@dataclass(frozen=True)
class End:
    """Where a chain ends.

    sequence: the number of its last entry, 0 for none.
    digest: that entry's, hex.
    """

    sequence: int = 0
    digest: str = GENESIS


def begin(session: AsyncSession, chain: str) -> None:
    """An empty chain of this name."""
    session.add(ChainRow(name=chain, sequence=End().sequence, digest=End().digest))


async def end(session: AsyncSession, chain: str) -> End:
    """The end of a chain. Raises errors.InternalError for one that was never begun."""
    query = select(ChainRow.sequence, ChainRow.digest).where(ChainRow.name == chain)
    row = (await session.execute(query)).one_or_none()
    if row is None:
        raise InternalError(f"There is no chain {chain!r}.")
    return End(row.sequence, row.digest)


async def move(session: AsyncSession, chain: str, seen: End, digest: str) -> bool:
    """Move the end by one entry of this digest if the chain still ends where the writer saw it end. Whether it did."""
    moved = await session.execute(
        update(ChainRow)
        .where(ChainRow.name == chain, ChainRow.sequence == seen.sequence, ChainRow.digest == seen.digest)
        .values(sequence=seen.sequence + 1, digest=digest)
        .execution_options(synchronize_session=False)
    )
    return cast("CursorResult[Any]", moved).rowcount == 1
