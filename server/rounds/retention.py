"""What is kept of experiments that ended long ago, where the operator sets how long (``COTERIE_RETENTION_DAYS``).

An experiment's row, the record of each round, its first, best and last versions, the log of administrators' actions and
the privacy ledgers stay for ever. Its tasks, attempts, jobs, participations and events, and its other versions, go.
"""

import json
import re

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.server.clock import now_ms
from coterie.server.rounds.record import uploaded
from coterie.server.store import experiments
from coterie.server.store.engine import Database
from coterie.server.store.tables import (
    AttemptRow,
    BlobPopulationRow,
    BlobRow,
    EventRow,
    ExperimentRow,
    JobRow,
    ModelRow,
    ParticipationRow,
    RoundRow,
    TaskRow,
)

DAY_MS = 24 * 3600 * 1000
MADE = ("model", "state")
"""Kinds of blobs that rounds make: of these there is one more for every round."""
BYTES_KEPT = "bytes_up_kept"
"""What a round's record says of the bytes that its tasks sent, once their rows are gone."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


async def forget_old(database: Database, days: float | None) -> None:
    """Delete what is kept no longer of experiments that ended more than so many days ago. None: keep everything."""
    if days is None:
        return
    before = now_ms() - round(days * DAY_MS)
    async with database.read() as session:
        ended = select(ExperimentRow.id).where(ExperimentRow.finished_at < before)
        old = (await session.execute(ended)).scalars().all()
        unforgotten = [name for name in old if await _holds_rows(session, name)]
    for name in unforgotten:
        async with database.write("sweep") as session:
            await _forget(session, name)


async def _holds_rows(session: AsyncSession, experiment: str) -> bool:
    """Whether there is anything to forget; its beginning is an event, so every experiment has one until then."""
    found = await session.execute(select(EventRow.id).where(EventRow.experiment == experiment).limit(1))
    return found.scalar() is not None


async def _forget(session: AsyncSession, experiment: str) -> None:
    row = (await experiments.lock(session, experiment)).experiment
    rounds = (await session.execute(select(RoundRow).where(RoundRow.experiment == experiment))).scalars().all()
    for round in rounds:
        record = {**json.loads(round.record or "{}"), BYTES_KEPT: await uploaded(session, row, round.number)}
        round.record, round.server_state = json.dumps(record), None
    for table in (AttemptRow, TaskRow, JobRow, ParticipationRow, EventRow):
        await session.execute(delete(table).where(table.experiment == experiment))
    numbers = select(ModelRow.round).where(ModelRow.experiment == experiment).order_by(ModelRow.round)
    versions = (await session.execute(numbers)).scalars().all()
    ends = {*versions[:1], *versions[-1:]}
    between = delete(ModelRow).where(ModelRow.experiment == experiment, ModelRow.round.not_in(ends))
    await session.execute(between if row.best is None else between.where(ModelRow.sha256 != row.best))
    row.server_state = None


async def forget_unused(database: Database, days: float | None) -> None:
    """Delete the rows of versions and server states that nothing mentions, once they are so many days old. Their files
    then are orphans.

    Only before the first request and the first round: later, a blob that nothing mentions may be about to be mentioned.
    """
    if days is None:
        return
    async with database.write("sweep") as session:
        old = BlobRow.created_at < now_ms() - round(days * DAY_MS)
        made = (await session.execute(select(BlobRow.sha256).where(BlobRow.kind.in_(MADE), old))).scalars().all()
        used = await _mentioned(session)
        for digest in made:
            if digest not in used:
                await session.execute(delete(BlobPopulationRow).where(BlobPopulationRow.sha256 == digest))
                await session.execute(delete(BlobRow).where(BlobRow.sha256 == digest))


async def _mentioned(session: AsyncSession) -> set[str]:
    """Every digest that a version, an experiment or an open round mentions."""
    found = set((await session.execute(select(ModelRow.sha256))).scalars())
    for row in (await session.execute(select(ExperimentRow))).scalars():
        found |= {row.model, row.best or "", row.server_state or "", *_DIGEST.findall(row.request)}
    running = select(ExperimentRow.id).where(ExperimentRow.finished_at.is_(None))
    for round in (await session.execute(select(RoundRow).where(RoundRow.experiment.in_(running)))).scalars():
        found |= {round.base, round.aggregate or "", round.server_state or "", *_DIGEST.findall(round.state)}
    return found
