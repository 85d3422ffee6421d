"""What an edge aggregator holds of the coordinator above it, as rows: its membership, and the tasks it has there.

leased ──► ready ──► pending ──► counted       its round is answered; the answer is sent; the round above counted it
       │         │           └─► rolled_back   or did not
       │         ├─► counted                   an evaluation counts when it is taken
       │         └─► refused                   the answer may not enter the aggregate above
       └─► failed ──► told                     no answer could be made; the coordinator above knows it
"""

from collections.abc import Sequence
from typing import Any, Final, cast

from sqlalchemy import CursorResult, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import InternalError
from coterie.protocol.device import EdgeTerms, Task
from coterie.server.clock import now_ms
from coterie.server.store.tables import ExperimentRow, MembershipRow, UpstreamTaskRow

LEASED: Final = "leased"
READY: Final = "ready"
PENDING: Final = "pending"
COUNTED: Final = "counted"
ROLLED_BACK: Final = "rolled_back"
FAILED: Final = "failed"
TOLD: Final = "told"
REFUSED: Final = "refused"
NEXT: Final[dict[str, tuple[str, ...]]] = {
    LEASED: (READY, FAILED, TOLD),
    READY: (PENDING, COUNTED, REFUSED),
    PENDING: (COUNTED, ROLLED_BACK),
    FAILED: (TOLD,),
}
LIVE: Final = (LEASED, READY, PENDING)


async def membership(session: AsyncSession) -> MembershipRow | None:
    """What this edge aggregator pinned, if it has joined a coordinator."""
    return (await session.execute(select(MembershipRow))).scalar_one_or_none()


async def find(session: AsyncSession, task: str) -> UpstreamTaskRow | None:
    """The task of this id."""
    return await session.get(UpstreamTaskRow, task)


async def at_work(session: AsyncSession) -> UpstreamTaskRow | None:
    """The task that is not answered yet; an edge aggregator leases one at a time."""
    query = select(UpstreamTaskRow).where(UpstreamTaskRow.state.in_((LEASED, READY, FAILED)))
    return (await session.execute(query.order_by(UpstreamTaskRow.created_at).limit(1))).scalar_one_or_none()


async def pending(session: AsyncSession, limit: int) -> Sequence[UpstreamTaskRow]:
    """The oldest answers of which the coordinator above has not said what became of them."""
    query = select(UpstreamTaskRow).where(UpstreamTaskRow.state == PENDING).order_by(UpstreamTaskRow.created_at)
    return (await session.execute(query.limit(limit))).scalars().all()


async def move(session: AsyncSession, task: str, state: str, **changes: Any) -> bool:
    """Take a task to its next state. False when it is in no state that this one follows; then nothing changed."""
    before = [name for name, after in NEXT.items() if state in after]
    if not before:
        raise InternalError(f"No task becomes {state!r}.")
    ended = {"finished_at": now_ms()} if state not in NEXT else {}
    result = await session.execute(
        update(UpstreamTaskRow)
        .where(UpstreamTaskRow.id == task, UpstreamTaskRow.state.in_(before))
        .values(state=state, **ended, **changes)
    )
    return cast("CursorResult[Any]", result).rowcount == 1


async def experiments(session: AsyncSession, limit: int) -> Sequence[str]:
    """The experiments of above that are running here, the oldest first."""
    mirrored = select(UpstreamTaskRow.experiment)
    query = select(ExperimentRow.id).where(ExperimentRow.state == "running", ExperimentRow.id.in_(mirrored))
    return (await session.execute(query.order_by(ExperimentRow.id).limit(limit))).scalars().all()


async def mirrored(session: AsyncSession, experiment: str) -> bool:
    """Whether an experiment is one of the coordinator above."""
    query = select(UpstreamTaskRow.id).where(UpstreamTaskRow.experiment == experiment)
    return (await session.execute(query.limit(1))).first() is not None


async def keep(session: AsyncSession, task: str, accumulator: str) -> None:
    """Say which file answers a task that is not ready yet."""
    await session.execute(
        update(UpstreamTaskRow)
        .where(UpstreamTaskRow.id == task, UpstreamTaskRow.state == LEASED)
        .values(upload=accumulator)
    )


async def live_accumulators(session: AsyncSession) -> frozenset[str]:
    """The digests of the accumulators that are still to be sent."""
    query = select(UpstreamTaskRow.upload).where(UpstreamTaskRow.state.in_((LEASED, READY)))
    return frozenset(digest for digest in (await session.execute(query)).scalars() if digest is not None)


def message(row: UpstreamTaskRow) -> Task:
    """The task as the coordinator above signed it."""
    return Task.model_validate_json(row.message)


def terms(row: UpstreamTaskRow) -> EdgeTerms:
    """What the task asks of an edge aggregator. Raises InternalError for a device's task, which no row is made for."""
    asked = message(row).edge
    if asked is None:
        raise InternalError(f"The upstream task {row.id} has no terms for an edge aggregator.")
    return asked
