"""Events as rows: what happened, in the order of the commits."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from sqlalchemy import Table, bindparam, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import InternalError
from coterie.server.clock import now_ms
from coterie.server.store.tables import CounterRow, EventRow, ExperimentRow

_HAPPENED: Final = "events"
_COUNTER: Final = "events"
_COUNT: Final = (
    update(CounterRow)
    .where(CounterRow.name == _COUNTER)
    .values(value=CounterRow.value + bindparam("more"))
    .returning(CounterRow.value)
    .execution_options(synchronize_session=False)
)
# Plain columns: a stream asks after every change, and making entities of rows takes longer than to read them.
_AFTER: Final = (
    select(EventRow.id, EventRow.type, EventRow.experiment, EventRow.data, EventRow.at)
    .where(EventRow.id > bindparam("last"))
    .order_by(EventRow.id)
    .limit(bindparam("most"))
)
_OF_EXPERIMENT: Final = EventRow.experiment == bindparam("of_experiment")
_OF_POPULATION: Final = or_(
    EventRow.population == bindparam("of_population"),
    EventRow.experiment.in_(select(ExperimentRow.id).where(ExperimentRow.population == bindparam("of_population"))),
)
_AFTER_BY: Final = {
    (False, False): _AFTER,
    (True, False): _AFTER.where(_OF_EXPERIMENT),
    (False, True): _AFTER.where(_OF_POPULATION),
    (True, True): _AFTER.where(_OF_EXPERIMENT, _OF_POPULATION),
}
"""By whether they are of one experiment, and of one population."""
_WRITE: Final = insert(cast("Table", EventRow.__table__))
"""Into the table, not the entity: that passes the machinery for entities by."""


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
    happened: list[dict[str, Any]] = session.info.setdefault(_HAPPENED, [])
    event = {"type": type, "experiment": experiment, "population": data.get("population")}
    happened.append(event | {"data": json.dumps(dict(data)), "at": now_ms()})


async def number(session: AsyncSession) -> None:
    """Write the events of a transaction that is about to commit.

    Their numbers come from a row that stays locked until then, so numbers are in the order of commits on every
    database: who has read up to number n never misses a smaller one. A sequence would give numbers out before commits.
    Raises InternalError where the row is missing.
    """
    happened: list[dict[str, Any]] = session.info.pop(_HAPPENED, [])
    if not happened:
        return
    last = (await session.execute(_COUNT, {"more": len(happened)})).scalar_one_or_none()
    if last is None:
        raise InternalError("The counter of events has no row.")
    first = last - len(happened) + 1
    await session.execute(_WRITE, [event | {"id": first + place} for place, event in enumerate(happened)])


async def after(
    session: AsyncSession, last: int, experiment: str | None, population: str | None, limit: int
) -> list[StoredEvent]:
    """The events with a greater id than ``last``, oldest first; of one experiment or of all, and of one population or
    of all.
    """
    named: dict[str, Any] = {"last": last, "most": limit}
    if experiment is not None:
        named["of_experiment"] = experiment
    if population is not None:
        named["of_population"] = population
    rows = await session.execute(_AFTER_BY[experiment is not None, population is not None], named)
    return [StoredEvent(id=row.id, type=row.type, experiment=row.experiment, data=row.data, at=row.at) for row in rows]
