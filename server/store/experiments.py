"""Experiments, their rounds and their model versions as rows.

Transactions lock rows in one order: experiments by rising id, their rounds, attempts, tasks. Two that keep to it never
wait for each other in a circle. So whoever changes a round, or what became of a task, first of all calls `lock` (for
several experiments `lock_all`), once, and passes on what it returns. Who changes no more than one task that stays
leased (a part of an upload, a sign of life), one attempt or one job needs no more than that row. Transactions that only
read lock nothing.

PostgreSQL locks rows. SQLite has one writer at a time; there the tests' coordinators hold every statement to the order
(`tests/lock_order.py`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

from sqlalchemy import BindParameter, CursorResult, Select, bindparam, select, true, update
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.engine import Round
from coterie.aggregation.progress import ExperimentProgress
from coterie.errors import InternalError
from coterie.protocol.control import ExperimentCreate
from coterie.protocol.conversion import from_text, to_text
from coterie.protocol.lineage import GENESIS, Lineage, LineageLink, head
from coterie.server.clock import now_ms
from coterie.server.store.tables import ExperimentRow, ModelRow, RoundRow

RUNNING: Final = "running"
OPEN_PHASES: Final = ("collecting", "aggregating", "evaluating", "committing")
_IS_OPEN: Final = RoundRow.phase.in_(OPEN_PHASES)
Row = TypeVar("Row", ExperimentRow, RoundRow)

# Built once: the driver and every device that waits look at the open rounds again after every commit.
_OPEN_ROUND: Final = select(RoundRow).where(RoundRow.experiment == bindparam("experiment"), _IS_OPEN)
_OPEN_ROUNDS: Final = select(RoundRow).where(_IS_OPEN).order_by(RoundRow.created_at, RoundRow.experiment)
_OPEN_ROUNDS_OF: Final = _OPEN_ROUNDS.join(ExperimentRow, ExperimentRow.id == RoundRow.experiment).where(
    ExperimentRow.population == bindparam("population")
)
_UNFINISHED: Final = (
    select(RoundRow).where(RoundRow.cleaned.is_(False)).order_by(RoundRow.created_at, RoundRow.experiment)
)
_RUNNING: Final = select(ExperimentRow.id).where(ExperimentRow.state == RUNNING).order_by(ExperimentRow.id)


async def find(session: AsyncSession, identifier: str) -> ExperimentRow | None:
    """The experiment of this id."""
    return await session.get(ExperimentRow, identifier)


async def create(session: AsyncSession, identifier: str, request: ExperimentCreate, plan: str) -> ExperimentRow:
    """A new experiment, running, with no round yet.

    plan: its manifest's digest.
    """
    row = ExperimentRow(
        id=identifier,
        name=request.name,
        population=request.population,
        request=request.model_dump_json(),
        plan=plan,
        state=RUNNING,
        progress=to_text(ExperimentProgress(current=request.initial.sha256)),
        round=0,
        model=request.initial.sha256,
        created_at=now_ms(),
    )
    session.add(row)
    await session.flush()
    return row


def request_of(row: ExperimentRow) -> ExperimentCreate:
    """What was asked for. It never changes, and every check-in needs it, so it is read once."""
    return _request(row.request)


@lru_cache(maxsize=256)
def _request(text: str) -> ExperimentCreate:
    return ExperimentCreate.model_validate_json(text)


async def matching(session: AsyncSession, text: str, population: str | None) -> Sequence[ExperimentRow]:
    """At most two experiments whose id starts with a text or whose name is that text.

    population: the only one to look in; None: all.
    """
    within = true() if population is None else ExperimentRow.population == population
    query = select(ExperimentRow).where(within).limit(2)
    by_id = query.where(ExperimentRow.id.startswith(text, autoescape=True))
    found = (await session.execute(by_id)).scalars().all() if text.startswith("exp_") else ()
    return found or (await session.execute(query.where(ExperimentRow.name == text))).scalars().all()


async def page(
    session: AsyncSession, population: str | None, state: str | None, before: str | None, limit: int
) -> Sequence[ExperimentRow]:
    """Experiments, the newest first."""
    query = select(ExperimentRow).order_by(ExperimentRow.id.desc()).limit(limit)
    if population is not None:
        query = query.where(ExperimentRow.population == population)
    if state is not None:
        query = query.where(ExperimentRow.state == state)
    if before is not None:
        query = query.where(ExperimentRow.id < before)
    return (await session.execute(query)).scalars().all()


async def running_ids(session: AsyncSession, population: str | None = None) -> Sequence[str]:
    """The experiments that are running, of one population or of all, the oldest first."""
    query = _RUNNING if population is None else _RUNNING.where(ExperimentRow.population == population)
    return (await session.execute(query)).scalars().all()


async def not_running(session: AsyncSession, population: str, named: Sequence[str]) -> tuple[str, ...]:
    """Those of these experiments that are over, or that this population never had."""
    if not named:
        return ()
    query = select(ExperimentRow.id).where(
        ExperimentRow.id.in_(named), ExperimentRow.population == population, ExperimentRow.state == RUNNING
    )
    running = set((await session.execute(query)).scalars())
    return tuple(name for name in named if name not in running)


@dataclass(frozen=True)
class OpenRound:
    """A round for which something is due still: its row and the engine's value of it."""

    row: RoundRow
    value: Round


@dataclass(frozen=True)
class Locked:
    """An experiment that nobody else changes until this transaction ends.

    opened: its round that is not over.
    """

    experiment: ExperimentRow
    opened: OpenRound | None


async def lock(session: AsyncSession, identifier: str) -> Locked:
    """Lock an experiment and then its open round, for changing them or their tasks."""
    found = await lock_all(session, (identifier,))
    if identifier not in found:
        raise InternalError(f"The experiment {identifier} has no row.")
    return found[identifier]


async def lock_all(session: AsyncSession, identifiers: Iterable[str]) -> dict[str, Locked]:
    """Lock experiments by rising id, and then their open rounds. Returns those that exist, in that order.

    Two statements, not a join: the second sees what whoever held the lock before has committed.
    """
    wanted = sorted(set(identifiers))
    if not wanted:
        return {}
    experiments = (await session.execute(_LOCKED, {"wanted": wanted})).scalars().all()
    rows = (await session.execute(_LOCKED_ROUNDS, {"wanted": wanted})).scalars()
    opened = {row.experiment: OpenRound(row, from_text(Round, row.state)) for row in rows}
    return {row.id: Locked(row, opened.get(row.id)) for row in experiments}


def _for_change(query: Select[Row]) -> Select[Row]:
    """A query that locks its rows as an UPDATE would, and reads them as they are then. Their ids never change, so rows
    of other tables that refer to them can still be added.
    """
    return query.with_for_update(key_share=True).execution_options(populate_existing=True)


# Built once: whoever changes a round, or what became of a task, asks for both.
_WANTED: Final[BindParameter[str]] = bindparam("wanted", expanding=True)
_LOCKED: Final = _for_change(select(ExperimentRow).where(ExperimentRow.id.in_(_WANTED)).order_by(ExperimentRow.id))
_LOCKED_ROUNDS: Final = _for_change(
    select(RoundRow).where(RoundRow.experiment.in_(_WANTED), _IS_OPEN).order_by(RoundRow.experiment)
)


async def open_round(session: AsyncSession, experiment: str) -> OpenRound | None:
    """The round of an experiment that is not over, for reading it; there is at most one."""
    row = (await session.execute(_OPEN_ROUND, {"experiment": experiment})).scalar_one_or_none()
    return None if row is None else OpenRound(row, from_text(Round, row.state))


async def open_rounds(session: AsyncSession, population: str | None = None) -> Sequence[OpenRound]:
    """Every round that is not over, of one population or of all, the oldest first."""
    if population is None:
        found = await session.execute(_OPEN_ROUNDS)
    else:
        found = await session.execute(_OPEN_ROUNDS_OF, {"population": population})
    return [OpenRound(row, from_text(Round, row.state)) for row in found.scalars()]


async def unfinished_rounds(session: AsyncSession) -> Sequence[OpenRound]:
    """Every round for which anything is due, the oldest first: those that are not over, and those whose files are not
    deleted.
    """
    found = await session.execute(_UNFINISHED)
    return [OpenRound(row, from_text(Round, row.state)) for row in found.scalars()]


async def unfinished_round(session: AsyncSession, experiment: str, number: int) -> OpenRound | None:
    """One of `unfinished_rounds`, for changing it under the lock of its experiment."""
    query = _UNFINISHED.where(RoundRow.experiment == experiment, RoundRow.number == number)
    row = (await session.execute(query)).scalar_one_or_none()
    return None if row is None else OpenRound(row, from_text(Round, row.state))


async def save_round(session: AsyncSession, row: RoundRow, value: Round, changes: Mapping[str, Any]) -> None:
    """Write a round's next value. The version guards against a change that this transaction has not seen."""
    result = await session.execute(
        update(RoundRow)
        .where(RoundRow.experiment == row.experiment, RoundRow.number == row.number, RoundRow.version == row.version)
        .values(
            state=to_text(value), phase=value.phase.value, cleaned=value.cleaned, version=row.version + 1, **changes
        )
        .execution_options(synchronize_session=False)
    )
    if cast("CursorResult[Any]", result).rowcount != 1:
        raise InternalError(f"Round {row.number} of {row.experiment} was changed by another transaction.")
    await session.refresh(row)


async def rounds_page(session: AsyncSession, experiment: str, after: int, limit: int) -> Sequence[RoundRow]:
    """The rounds of an experiment in order."""
    query = (
        select(RoundRow)
        .where(RoundRow.experiment == experiment, RoundRow.number > after)
        .order_by(RoundRow.number)
        .limit(limit)
    )
    return (await session.execute(query)).scalars().all()


async def add_model(
    session: AsyncSession,
    experiment: ExperimentRow,
    *,
    round: int,
    sha256: str,
    parent: str | None,
    size: int,
    metrics: Mapping[str, float],
) -> None:
    """Add a model version to the lineage of an experiment, whose row the caller has locked."""
    newest = await _newest_model(session, experiment.id)
    session.add(
        ModelRow(
            experiment=experiment.id, round=round, sha256=sha256, parent=parent, size=size,
            before=GENESIS if newest is None else _head(newest, experiment),
            metrics=json.dumps(dict(metrics), sort_keys=True), created_at=now_ms(),
        )
    )  # fmt: skip


async def lineage(session: AsyncSession, experiment: ExperimentRow, version: str, *, number: int) -> Lineage | None:
    """Where a version stands: the newest one, or one that round ``number`` would commit after it. None where the
    versions are of the coordinator above.
    """
    newest = await _newest_model(session, experiment.id)
    if newest is None:
        return None
    if newest.sha256 == version:
        return Lineage(round=newest.round, before=newest.before)
    return Lineage(round=number, before=_head(newest, experiment))


async def _newest_model(session: AsyncSession, experiment: str) -> ModelRow | None:
    query = select(ModelRow).where(ModelRow.experiment == experiment).order_by(ModelRow.round.desc()).limit(1)
    return (await session.execute(query)).scalar_one_or_none()


def _head(row: ModelRow, experiment: ExperimentRow) -> str:
    link = LineageLink(round=row.round, version=row.sha256)
    return head(row.before, link, experiment=experiment.id, plan=experiment.plan)


async def models_page(session: AsyncSession, experiment: str, after: int, limit: int) -> Sequence[ModelRow]:
    """The model versions of an experiment in order; round 0 is the initial one."""
    query = (
        select(ModelRow)
        .where(ModelRow.experiment == experiment, ModelRow.round > after)
        .order_by(ModelRow.round)
        .limit(limit)
    )
    return (await session.execute(query)).scalars().all()


async def model(session: AsyncSession, sha256: str, population: str | None) -> ModelRow | None:
    """The newest place in any lineage of a model version.

    population: the only one to look in; None: all.
    """
    query = select(ModelRow).where(ModelRow.sha256 == sha256).order_by(ModelRow.created_at.desc()).limit(1)
    if population is not None:
        owner = ExperimentRow.id == ModelRow.experiment
        query = query.join(ExperimentRow, owner).where(ExperimentRow.population == population)
    return (await session.execute(query)).scalar_one_or_none()
