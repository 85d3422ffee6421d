"""A finished round as one row: the same for events, for lists and for histories."""

import json
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.engine import Round, RoundPhase
from coterie.aggregation.record import RoundRecord
from coterie.protocol.device import DIVERGED
from coterie.protocol.participants import Participant
from coterie.protocol.privacy import UserLevel
from coterie.server.rounds.spending import privacy_of
from coterie.server.store import experiments, tasks
from coterie.server.store.tables import ExperimentRow

MOST_LISTED: Final = 256
"""Of so many clients, at most, a record lists each."""


def round_record(
    value: Round,
    *,
    bytes_up: int,
    bytes_down: int,
    seconds: float,
    lost: Mapping[str, Any],
    given_up: Mapping[str, int],
    took_part: tuple[Participant, ...] = (),
) -> dict[str, Any]:
    """The row of an ended round, and the engine's own words about it.

    bytes_up: see `uploaded`.
    bytes_down: see `coterie.server.traffic`.
    seconds: from its begin to its end, by the wall clock.
    lost: see `Spending.lost`.
    given_up: how many devices gave their task up, by the reason they told; said of a round that came to nothing.
    took_part: see `participants`.
    """
    record = RoundRecord.of(
        value,
        bytes_up=bytes_up,
        bytes_down=bytes_down,
        seconds=round(seconds, 3),
        diverged=given_up.get(DIVERGED, 0),
        participants=took_part,
    )
    return {**record.to_dict(), **lost, "detail": _with_reasons(value, given_up)}


async def participants(session: AsyncSession, experiment: ExperimentRow, value: Round) -> tuple[Participant, ...]:
    """Whose updates a round counts, for `RoundRecord.participants`: nobody under differential privacy, which covers who
    took part, nor above `MOST_LISTED`; no losses where updates are only ever seen as sums.
    """
    request = experiments.request_of(experiment)
    if request.privacy is not None or value.config.evaluate_only:
        return ()
    rows = [row for row in await tasks.accepted(session, experiment.id, value.number) if row.kind == "train"]
    if len(rows) > MOST_LISTED:
        return ()
    losses = [(row, None if request.secure is not None else json.loads(row.sums).get("loss")) for row in rows]
    found = [Participant(client=row.device, lag=max(value.place - row.place, 0), loss=loss) for row, loss in losses]
    return tuple(sorted(found, key=lambda one: one.client))


async def uploaded(session: AsyncSession, experiment: ExperimentRow, number: int) -> int:
    """The ``bytes_up`` of a round: bodies of uploads received for its tasks, refused and repeated ones included.

    Under user-level privacy only the updates that it accepted, each once: their codecs are of fixed size, so the number
    says how many devices there were, which is told anyway, and nothing of what they sent or how.
    """
    if isinstance(privacy_of(experiments.request_of(experiment)), UserLevel):
        return await tasks.bytes_accepted(session, experiment.id, number)
    return await tasks.bytes_up(session, experiment.id, number)


def _with_reasons(value: Round, given_up: Mapping[str, int]) -> str | None:
    if value.phase is not RoundPhase.ABANDONED or not given_up:
        return value.detail
    reasons = "devices gave tasks up: " + ", ".join(f"{code} ({count})" for code, count in given_up.items())
    return f"{value.detail}; {reasons}" if value.detail else reasons
