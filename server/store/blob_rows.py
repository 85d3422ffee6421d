"""Which blobs are durable, how large they are, and whether anybody may have them."""

from typing import Final

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.server.clock import now_ms
from coterie.server.store.tables import BlobPopulationRow, BlobRow, ExperimentRow, ModelRow

PUBLIC_KINDS: Final = frozenset({"plan", "graph", "model", "frozen"})


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


async def keep_for(session: AsyncSession, sha256: str, population: str) -> bool:
    """Say that a token for this population has sent a durable blob. False when that was known."""
    if await session.get(BlobPopulationRow, (sha256, population)) is not None:
        return False
    await session.flush()
    session.add(BlobPopulationRow(sha256=sha256, population=population))
    return True


async def durable_blobs(session: AsyncSession, digests: frozenset[str], population: str | None) -> frozenset[str]:
    """Which of these blobs are durable.

    population: only those that its tokens have sent or its experiments have made; None: all.
    """
    query = select(BlobRow.sha256).where(BlobRow.sha256.in_(digests))
    if population is not None:
        sent = select(BlobPopulationRow.sha256).where(BlobPopulationRow.population == population)
        owner = ExperimentRow.id == ModelRow.experiment
        made = select(ModelRow.sha256).join(ExperimentRow, owner).where(ExperimentRow.population == population)
        query = query.where(or_(BlobRow.sha256.in_(sent), BlobRow.sha256.in_(made)))
    return frozenset((await session.execute(query)).scalars())


async def all_digests(session: AsyncSession) -> frozenset[str]:
    """Every blob that a row mentions."""
    return frozenset((await session.execute(select(BlobRow.sha256))).scalars())
