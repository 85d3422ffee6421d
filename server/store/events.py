"""Events as rows: what happened, in the order of the commits."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.server.clock import now_ms
from coterie.server.store.tables import EventRow


@dataclass(frozen=True, kw_only=True)
class StoredEvent:
    """One event as it was recorded. ``data`` is JSON text."""

    id: int
    type: str
    experiment: str | None
    data: str
    at: int


def append(session: AsyncSession, type: str, data: Mapping[str, Any], experiment: str | None = None) -> None:
    """Record an event in the transaction that makes it true."""
    session.add(EventRow(type=type, experiment=experiment, data=json.dumps(dict(data)), at=now_ms()))


async def after(session: AsyncSession, last: int, experiment: str | None, limit: int) -> list[StoredEvent]:
    """The events with a greater id than ``last``, oldest first; of one experiment or of all."""
    query = select(EventRow).where(EventRow.id > last).order_by(EventRow.id).limit(limit)
    if experiment is not None:
        query = query.where(EventRow.experiment == experiment)
    rows = (await session.execute(query)).scalars()
    return [StoredEvent(id=row.id, type=row.type, experiment=row.experiment, data=row.data, at=row.at) for row in rows]
