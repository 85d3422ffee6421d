"""Populations and the researchers' keys they accept."""

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.server.clock import now_ms
from coterie.server.store import ledger
from coterie.server.store.tables import DeviceRow, PopulationRow, SignerRow


async def find(session: AsyncSession, name: str) -> PopulationRow | None:
    """The population of this name."""
    return await session.get(PopulationRow, name)


async def add(
    session: AsyncSession, name: str, schema_json: str, schema_digest: str, *, client_state: str = "kept"
) -> PopulationRow:
    """Keep a new population, with an empty privacy ledger."""
    row = PopulationRow(
        name=name,
        schema_json=schema_json,
        schema_digest=schema_digest,
        client_state=client_state,
        created_at=now_ms(),
    )
    session.add(row)
    await session.flush()
    ledger.begin(session, name)
    return row


async def names(session: AsyncSession) -> Sequence[str]:
    """The names of all populations, in order."""
    return (await session.execute(select(PopulationRow.name).order_by(PopulationRow.name))).scalars().all()


async def page(session: AsyncSession, only: str | None, after: str, limit: int) -> Sequence[PopulationRow]:
    """Populations by name.

    only: the one to show; None: all.
    """
    query = select(PopulationRow).where(PopulationRow.name > after).order_by(PopulationRow.name).limit(limit)
    if only is not None:
        query = query.where(PopulationRow.name == only)
    return (await session.execute(query)).scalars().all()


async def signers(session: AsyncSession, population: str) -> tuple[str, ...]:
    """The public keys whose plans the population accepts, the oldest first."""
    query = (
        select(SignerRow.public)
        .where(SignerRow.population == population)
        .order_by(SignerRow.created_at, SignerRow.public)
    )
    return tuple((await session.execute(query)).scalars())


async def allow(session: AsyncSession, population: str, public: str) -> bool:
    """Accept one more key. False when it was accepted already."""
    if await session.get(SignerRow, (population, public)) is not None:
        return False
    session.add(SignerRow(population=population, public=public, created_at=now_ms()))
    return True


async def replace_signers(session: AsyncSession, population: str, keys: Sequence[str]) -> tuple[str, ...]:
    """Accept exactly these keys. Returns those that were added or removed."""
    before = await signers(session, population)
    removed = [public for public in before if public not in keys]
    added = [public for public in dict.fromkeys(keys) if public not in before]
    for public in removed:
        await session.delete(await session.get_one(SignerRow, (population, public)))
    for public in added:
        await allow(session, population, public)
    return (*removed, *added)


async def device_count(session: AsyncSession, population: str) -> int:
    """How many devices are enrolled and not revoked."""
    query = (
        select(func.count())
        .select_from(DeviceRow)
        .where(DeviceRow.population == population, DeviceRow.revoked_at.is_(None))
    )
    return (await session.execute(query)).scalar_one()
