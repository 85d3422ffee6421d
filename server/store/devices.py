"""Enrolled devices, and what this process remembers of them so that an idle check-in needs no query."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.server.store.dialect import batches
from coterie.server.store.engine import Database
from coterie.server.store.tables import DeviceRow, TaskRow, TokenRow
from coterie.server.store.tasks import ABORTED, EXPIRED, REFUSED


class ClientBounds(NamedTuple):
    """Of how many clients an update of an edge aggregator must and may be."""

    fewest: int
    most: int


def client_bounds(row: DeviceRow | TokenRow) -> ClientBounds | None:
    """For how many clients an edge aggregator, or who enrols with a token, may speak; None for a device."""
    return None if row.max_clients is None else ClientBounds(row.min_clients or 1, row.max_clients)


@dataclass(frozen=True)
class KnownDevice:
    """What authentication needs of a device."""

    id: str
    population: str
    public: str
    revoked: bool
    clients: ClientBounds | None = None


class DeviceCache:
    """Remembers devices by id, up to a bound and for a while. A revocation by this process forgets its device at once;
    one by another process holds here when the device's time is over.
    """

    def __init__(
        self,
        database: Database,
        bound: int = 100_000,
        lasts_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._bound = bound
        self._lasts_s = lasts_s
        self._clock = clock
        self._known: dict[str, tuple[float, KnownDevice]] = {}
        self._forgotten = 0

    async def find(self, identifier: str) -> KnownDevice | None:
        """The device of this id, or None."""
        until, known = self._known.get(identifier, (0.0, None))
        if known is not None and self._clock() < until:
            return known
        began = self._clock()
        forgotten = self._forgotten
        async with self._database.read() as session:
            row = await session.get(DeviceRow, identifier)
        if row is None:
            return None
        known = KnownDevice(row.id, row.population, row.public, row.revoked_at is not None, client_bounds(row))
        # A row that was read before a revocation must not be remembered after it.
        if forgotten == self._forgotten:
            self._known.pop(identifier, None)
            if len(self._known) >= self._bound:
                self._known.pop(next(iter(self._known)))
            self._known[identifier] = (began + self._lasts_s, known)
        return known

    def forget(self, identifier: str) -> None:
        """Read this device's row again next time."""
        self._forgotten += 1
        self._known.pop(identifier, None)


async def enrolled(session: AsyncSession, identifier: str, population: str) -> bool:
    """Whether this is a device of the population that has not been shut out."""
    row = await session.get(DeviceRow, identifier)
    return row is not None and row.population == population and row.revoked_at is None


async def by_key(session: AsyncSession, public: str) -> DeviceRow | None:
    """The device with this public key."""
    return (await session.execute(select(DeviceRow).where(DeviceRow.public == public))).scalar_one_or_none()


async def revoke(session: AsyncSession, identifier: str, now: int, details: str) -> None:
    """Shut a device out for ever.

    details: what its row says of it from then on.
    """
    active = DeviceRow.id == identifier, DeviceRow.revoked_at.is_(None)
    await session.execute(update(DeviceRow).where(*active).values(revoked_at=now, details=details))


async def any_edge(session: AsyncSession, population: str) -> bool:
    """Whether an edge aggregator is enrolled in this population and not revoked."""
    query = select(DeviceRow.id).where(
        DeviceRow.population == population, DeviceRow.revoked_at.is_(None), DeviceRow.max_clients.is_not(None)
    )
    return (await session.execute(query.limit(1))).first() is not None


async def saw(session: AsyncSession, seen: Mapping[str, int]) -> None:
    """Write down when devices were last seen."""
    for identifier, at in seen.items():
        await session.execute(update(DeviceRow).where(DeviceRow.id == identifier).values(seen_at=at))


async def page(session: AsyncSession, population: str | None, after: str, limit: int) -> Sequence[DeviceRow]:
    """Devices by rising id, which is the order of enrolment."""
    query = select(DeviceRow).where(DeviceRow.id > after).order_by(DeviceRow.id).limit(limit)
    if population is not None:
        query = query.where(DeviceRow.population == population)
    return (await session.execute(query)).scalars().all()


async def accepted(session: AsyncSession, identifiers: Sequence[str]) -> dict[str, int]:
    """How many updates of each device were accepted."""
    query = (
        select(TaskRow.device, func.count())
        .where(TaskRow.device.in_(identifiers), TaskRow.state == "accepted", TaskRow.kind == "train")
        .group_by(TaskRow.device)
    )
    return {row[0]: row[1] for row in await session.execute(query)}


async def failures(session: AsyncSession, identifiers: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Of each device that had any: how many of its tasks ended without an accepted update, and the code of the last."""
    lost = TaskRow.device.in_(identifiers), TaskRow.state.in_((REFUSED, ABORTED, EXPIRED))
    counts = select(TaskRow.device, func.count(), func.max(TaskRow.id)).where(*lost).group_by(TaskRow.device)
    found = {device: (count, last) for device, count, last in await session.execute(counts)}
    newest = [task for _, task in found.values()]
    codes = select(TaskRow.id, TaskRow.code, TaskRow.state).where(TaskRow.id.in_(newest))
    said = {row.id: row.code or row.state for row in await session.execute(codes)}
    return {device: (count, said[last]) for device, (count, last) in found.items()}


async def publics(session: AsyncSession, identifiers: Sequence[str]) -> dict[str, str]:
    """The public keys of these devices."""
    found: dict[str, str] = {}
    for some in batches(identifiers):
        query = select(DeviceRow.id, DeviceRow.public).where(DeviceRow.id.in_(some))
        found |= {row.id: row.public for row in await session.execute(query)}
    return found
