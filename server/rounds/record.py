"""A finished round as one row: the same for events, for lists and for histories."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.engine import Phase, Round
from coterie.aggregation.history import RoundRecord
from coterie.privacy.dp.privacy import UserLevel
from coterie.protocol.device import DIVERGED
from coterie.server.rounds.spending import privacy_of
from coterie.server.store import experiments, tasks
from coterie.server.store.tables import ExperimentRow


def round_record(
    value: Round,
    *,
    bytes_up: int,
    bytes_down: int,
    seconds: float,
    lost: Mapping[str, Any],
    given_up: Mapping[str, int],
) -> dict[str, Any]:
    """The row of an ended round, and the engine's own words about it.

    bytes_up: see `uploaded`. bytes_down: see `coterie.server.traffic`.
    seconds: from its begin to its end, by the wall clock. lost: see `Spending.lost`. given_up: how many
    devices gave their task up, by the reason they told; said of a round that came to nothing.
    """
    record = RoundRecord.of(
        value,
        bytes_up=bytes_up,
        bytes_down=bytes_down,
        seconds=round(seconds, 3),
        diverged=given_up.get(DIVERGED, 0),
    )
    return {**record.to_dict(), **lost, "detail": _with_reasons(value, given_up)}


async def uploaded(session: AsyncSession, experiment: ExperimentRow, number: int) -> int:
    """The ``bytes_up`` of a round: bodies of uploads received for its tasks, refused and repeated ones included.

    Under user-level privacy only the updates that it accepted, each once: their codecs are of fixed size, so the number
    says how many devices there were, which is told anyway, and nothing of what they sent or how.
    """
    if isinstance(privacy_of(experiments.request_of(experiment)), UserLevel):
        return await tasks.bytes_accepted(session, experiment.id, number)
    return await tasks.bytes_up(session, experiment.id, number)


def _with_reasons(value: Round, given_up: Mapping[str, int]) -> str | None:
    if value.phase is not Phase.ABANDONED or not given_up:
        return value.detail
    told = "devices gave tasks up: " + ", ".join(f"{code} ({count})" for code, count in given_up.items())
    return f"{value.detail}; {told}" if value.detail else told
