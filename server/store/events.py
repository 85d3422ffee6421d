"""Events as rows: what happened, in the order of the commits."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import InternalError
from coterie.server.clock import now_ms
from coterie.server.store.tables import CounterRow, EventRow, ExperimentRow

_HAPPENED: Final = "events"
_COUNTER: Final = "events"


@dataclass(frozen=True, kw_only=True)
class StoredEvent:
    """One event as it was recorded. ``data`` is JSON text."""

    id: int
    type: str
    experiment: str | None
    data: str
    at: int


def append(session: AsyncSession, type: str, data: Mapping[str, Any], experiment: str | None = None) -> None:
    """Record an event in the transaction that makes it true. It gets its number when that commits: see `number`."""
    happened: list[EventRow] = session.info.setdefault(_HAPPENED, [])
    population = data.get("population")
    happened.append(
        EventRow(type=type, experiment=experiment, population=population, data=json.dumps(dict(data)), at=now_ms())
    )


async def number(session: AsyncSession) -> None:
    """Write the events of a transaction that is about to commit.

    Their numbers come from a row that stays locked until then, so numbers are in the order of commits on every
    database: who has read up to number n never misses a smaller one. A sequence would give numbers out before commits.
    Raises InternalError where the row is missing.
    """
    happened: list[EventRow] = session.info.pop(_HAPPENED, [])
    if not happened:
        return
    query = update(CounterRow).where(CounterRow.name == _COUNTER).values(value=CounterRow.value + len(happened))
    last = (await session.execute(query.returning(CounterRow.value))).scalar_one_or_none()
    if last is None:
        raise InternalError("The counter of events has no row.")
    for place, row in enumerate(happened, start=last - len(happened) + 1):
        row.id = place
        session.add(row)


async def after(
    session: AsyncSession, last: int, experiment: str | None, population: str | None, limit: int
) -> list[StoredEvent]:
    """The events with a greater id than ``last``, oldest first; of one experiment or of all, and of one population or
    of all.
    """
    query = select(EventRow).where(EventRow.id > last).order_by(EventRow.id).limit(limit)
    if experiment is not None:
        query = query.where(EventRow.experiment == experiment)
    if population is not None:
        own = select(ExperimentRow.id).where(ExperimentRow.population == population)
        query = query.where(or_(EventRow.population == population, EventRow.experiment.in_(own)))
    rows = (await session.execute(query)).scalars()
    return [StoredEvent(id=row.id, type=row.type, experiment=row.experiment, data=row.data, at=row.at) for row in rows]
