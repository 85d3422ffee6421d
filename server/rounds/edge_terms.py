"""What an edge aggregator's tasks say beside a device's, and which tasks it may have at all."""

import json
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.protocol.control import ExperimentCreate, RoundPolicy
from coterie.protocol.device import EdgeTerms, TaskKind
from coterie.server.clock import now_ms
from coterie.server.store import tasks, upstream
from coterie.server.store.devices import ClientBounds
from coterie.server.store.experiments import OpenRound
from coterie.server.store.tables import TaskRow

CHOICE: Final = ("selection", "min_examples", "labels", "rest_rounds", "rest_s")
"""The fields of a round policy that say who is asked: an edge aggregator asks them of its devices."""
_ANYBODY: Final = RoundPolicy(rounds=1, cohort=1)
"""Whoever can may measure what a round of training made."""


async def room(session: AsyncSession, opened: OpenRound, kind: TaskKind) -> int | None:
    """For how many more clients this round may hand out tasks of this kind; None where nothing bounds it.

    In the middle of a tree the coordinator above does: an edge aggregator answers for at most so many clients, however
    many they are below each of its own.
    """
    if opened.row.upstream is None:
        return None
    above = await upstream.find(session, opened.row.upstream)
    bound = upstream.terms(above).max_clients if above is not None else 0
    return bound - await tasks.clients(session, opened.row.experiment, opened.row.number, kind)


async def fits(session: AsyncSession, opened: OpenRound, kind: TaskKind, clients: ClientBounds | None) -> bool:
    """Whether this round has room for a device (no bounds), or an edge aggregator with these bounds."""
    left = await room(session, opened, kind)
    return left is None or left >= (clients.fewest if clients else 1)


async def edge_terms(
    session: AsyncSession, opened: OpenRound, kind: TaskKind, clients: ClientBounds | None, request: ExperimentCreate
) -> EdgeTerms | None:
    """The terms of a task that is about to be made; None for a device's."""
    if clients is None:
        return None
    left = await room(session, opened, kind)
    asks = request.rounds if kind == "train" or request.rounds.purpose == "evaluate" else _ANYBODY
    return EdgeTerms(
        reducer=request.reducer,
        min_clients=clients.fewest,
        max_clients=clients.most if left is None else min(clients.most, left),
        deadline_ms=_left(opened, round(request.rounds.lease_s * 1000)),
        **{name: getattr(asks, name) for name in CHOICE},
    )


def with_time_left(row: TaskRow) -> dict[str, object]:
    """A leased task's message with what is left of its lease and, for an edge aggregator, of its round."""
    message = json.loads(row.message)
    message["lease_ms"] = max(row.lease_until - now_ms(), 0)
    if message["edge"] is not None:
        message["edge"]["deadline_ms"] = max(message["edge"]["deadline_ms"] - (now_ms() - row.created_at), 0)
    return message


def _left(opened: OpenRound, lease_ms: int) -> int:
    """What is left of the phase; of the lease where tasks outlive rounds."""
    if opened.value.config.buffered or opened.row.deadline_at is None:
        return lease_ms
    return max(opened.row.deadline_at - now_ms(), 0)
