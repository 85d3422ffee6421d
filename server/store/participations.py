"""What an experiment remembers of the devices that contributed to it: one row each."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.server.store.dialect import batches
from coterie.server.store.tables import ParticipationRow


async def find(session: AsyncSession, experiment: str, device: str) -> ParticipationRow | None:
    """What is remembered of one device; None when it has not contributed."""
    return await session.get(ParticipationRow, (experiment, device))


async def of(session: AsyncSession, experiment: str, devices: Sequence[str]) -> dict[str, ParticipationRow]:
    """What is remembered of these devices, as far as they have contributed."""
    found: dict[str, ParticipationRow] = {}
    for some in batches(devices):
        query = select(ParticipationRow).where(
            ParticipationRow.experiment == experiment, ParticipationRow.device.in_(some)
        )
        found |= {row.device: row for row in (await session.execute(query)).scalars()}
    return found


async def note(
    session: AsyncSession,
    *,
    experiment: str,
    device: str,
    round: int,
    examples: int,
    loss: float | None,
    seconds: float,
    now: int,
) -> None:
    """Remember a contribution that was just accepted.

    examples: its weight.
    loss: the mean that it reports.
    seconds: from its lease to its acceptance.
    """
    row = await find(session, experiment, device)
    if row is None:
        row = ParticipationRow(experiment=experiment, device=device, times=0)
        session.add(row)
    row.last_round, row.times = round, row.times + 1
    row.examples, row.loss, row.seconds, row.at = examples, loss, seconds, now
