"""Which blobs are durable, how large they are, and whether anybody may have them."""

from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.server.clock import now_ms
from coterie.server.store.tables import BlobRow

PUBLIC_KINDS: Final = frozenset({"plan", "graph", "model", "frozen"})
PRIVATE_KINDS: Final = frozenset({"evaluation", "state"})


async def find(session: AsyncSession, sha256: str) -> BlobRow | None:
    """The row of a blob."""
    return await session.get(BlobRow, sha256)


async def keep(session: AsyncSession, sha256: str, size: int, kind: str) -> bool:
    """Say that a blob is durable. False when that was known; a public kind then wins over a private one, never the
    reverse.
    """
    row = await session.get(BlobRow, sha256)
    if row is None:
        session.add(BlobRow(sha256=sha256, size=size, kind=kind, created_at=now_ms()))
        return True
    if kind in PUBLIC_KINDS and row.kind not in PUBLIC_KINDS:
        row.kind = kind
    return False


async def known(session: AsyncSession, digests: frozenset[str]) -> frozenset[str]:
    """Which of these blobs are durable."""
    return frozenset((await session.execute(select(BlobRow.sha256).where(BlobRow.sha256.in_(digests)))).scalars())


async def all_digests(session: AsyncSession) -> frozenset[str]:
    """Every blob that a row mentions."""
    return frozenset((await session.execute(select(BlobRow.sha256))).scalars())
