"""Used nonces as rows, so that a request that changed something can never be applied twice."""

from typing import Final, cast

from sqlalchemy import Table, delete, insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.server.credentials.nonces import used
from coterie.server.store.tables import NonceRow

_SPEND: Final = insert(cast("Table", NonceRow.__table__))
"""Into the table, not the entity: that passes the machinery for entities by."""


async def spend(session: AsyncSession, nonce: str, expires_at: int) -> None:
    """Record a nonce in the transaction of the request that it signs. Raises Unauthenticated ``nonce_used`` for a
    replay.
    """
    try:
        await session.execute(_SPEND, {"nonce": nonce, "expires_at": expires_at})
    except IntegrityError:
        raise used() from None


async def forget_expired(session: AsyncSession, now: int) -> None:
    """Drop the nonces whose seal no longer holds: they are refused as stale."""
    await session.execute(delete(NonceRow).where(NonceRow.expires_at < now))
