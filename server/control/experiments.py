"""Experiments: asked for, watched, stopped."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Path, Query, Response
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.aggregation.engine import Round, StopRequested
from coterie.aggregation.plan.strategies import strategies
from coterie.aggregation.progress import Reason, measured
from coterie.aggregation.requested import settled_request
from coterie.errors import Conflict, InternalError, NotFound
from coterie.protocol import ids
from coterie.protocol.control import ExperimentCreate, ExperimentState, ExperimentView, ModelView, Page, RoundView
from coterie.protocol.conversion import from_text
from coterie.protocol.metrics import MetricSums
from coterie.protocol.spread import spreads
from coterie.server.auth.caller import Caller
from coterie.server.auth.gate import Calling, OpenCoordinator, gated_router
from coterie.server.control import submission
from coterie.server.control.idempotency import OnceOnly
from coterie.server.control.populations import find_population
from coterie.server.floor import check_floor, policy_of
from coterie.server.paging import PageCursor, PageLimit, after, instant, maybe_instant, number_after, page
from coterie.server.rounds.record import uploaded
from coterie.server.rounds.retention import BYTES_KEPT
from coterie.server.store import audit, events, experiments, upstream
from coterie.server.store.tables import ExperimentRow, ModelRow, RoundRow

router = gated_router("experiments")
ExperimentPath = Annotated[
    str, Path(max_length=200, description="An id, the unique beginning of one, or a unique name.")
]


def view(row: ExperimentRow, quarantined: Mapping[str, str]) -> ExperimentView:
    """An experiment as it stands.

    quarantined: why experiments that run stand still, by their ids.
    """
    request = experiments.request_of(row)
    return ExperimentView.model_validate(
        {
            "id": row.id,
            "name": row.name,
            "population": row.population,
            "state": row.state,
            "reason": row.reason or quarantined.get(row.id),
            "round": row.round,
            "plan": request.plan,
            "rounds": request.rounds,
            "server": request.server,
            "initial": request.initial.sha256,
            "latest": row.model,
            "best": row.best,
            "created_at": instant(row.created_at),
            "finished_at": maybe_instant(row.finished_at),
        }
    )


async def experiment_row(session: AsyncSession, text: str, caller: Caller) -> ExperimentRow:
    """The one experiment that a text means to a caller. Raises NotFound, or Conflict when it means several."""
    rows = await experiments.matching(session, text, caller.population)
    if not rows:
        where = "" if caller.population is None else f" in {caller.population!r}, the population of this token"
        raise NotFound(
            f"There is no experiment {text[:64]!r}{where}.",
            hint="List them: GET /v1/experiments.",
            code="experiment_unknown",
        )
    if len(rows) > 1:
        raise Conflict(
            f"{text[:64]!r} matches several experiments.", hint="Give the whole id.", code="experiment_ambiguous"
        )
    return rows[0]


@router.post(
    "/v1/experiments", operation_id="createExperiment", status_code=201, summary="Create an experiment and start it"
)
async def create(
    body: ExperimentCreate, response: Response, coordinator: OpenCoordinator, caller: Calling, once: OnceOnly
) -> ExperimentView:
    """Checked whole before it is created; its first round begins in the same transaction."""
    caller.check(body.population)
    body = settled_request(body)
    manifest = await submission.check(coordinator, body, caller)
    async with coordinator.storage.database.write("experiment") as session:
        await caller.confirm(session)
        earlier = await once.earlier(session, response)
        if earlier is not None:
            response.status_code = 200
            return view(await experiment_row(session, earlier, caller), coordinator.board.quarantined)
        population = await find_population(session, body.population)
        check_floor(body.population, policy_of(population), body, manifest)
        row = await experiments.create(session, ids.new_id(ids.EXPERIMENT), body, manifest.id)
        await experiments.add_model(
            session,
            row,
            round=0,
            sha256=body.initial.sha256,
            parent=None,
            size=body.initial.size,
            metrics={},
        )
        events.append(session, "experiment.created", {"name": row.name, "population": row.population}, row.id)
        await coordinator.rounds.begin_first(session, row)
        events.append(
            session, "experiment.started", {"rounds": body.rounds.rounds, "cohort": body.rounds.cohort}, row.id
        )
        server = {"reducer": body.reducer, "server": body.server.model_dump(mode="json")}
        details = {"name": row.name, "plan": row.plan, "strategies": list(strategies(manifest)), **server}
        await audit.append(session, caller.token, "experiment.created", row.id, details)
        once.remember(session, row.id)
    await coordinator.board.catch_up()
    response.headers["Location"] = f"/v1/experiments/{row.id}"
    return view(row, coordinator.board.quarantined)


@router.get("/v1/experiments", operation_id="listExperiments", summary="List experiments, the newest first")
async def index(
    coordinator: OpenCoordinator,
    caller: Calling,
    population: Annotated[str | None, Query(max_length=100)] = None,
    state: ExperimentState | None = None,
    limit: PageLimit = 100,
    cursor: PageCursor = None,
) -> Page[ExperimentView]:
    """All, or those of one population or in one state."""
    population = caller.within(population)
    async with coordinator.storage.database.read() as session:
        rows = await experiments.page(session, population, state, after(cursor), limit + 1)
    return page(rows, limit, lambda row: row.id, [view(row, coordinator.board.quarantined) for row in rows])


@router.get("/v1/experiments/{experiment}", operation_id="getExperiment", summary="One experiment")
async def show(experiment: ExperimentPath, coordinator: OpenCoordinator, caller: Calling) -> ExperimentView:
    """As it stands."""
    async with coordinator.storage.database.read() as session:
        return view(await experiment_row(session, experiment, caller), coordinator.board.quarantined)


@router.post(
    "/v1/experiments/{experiment}/stop", operation_id="stopExperiment", status_code=202, summary="Stop an experiment"
)
async def stop(experiment: ExperimentPath, coordinator: OpenCoordinator, caller: Calling) -> ExperimentView:
    """Idempotent. The open round is abandoned (``stopped``); versions committed before stay."""
    async with coordinator.storage.database.write("stop") as session:
        locked = await experiments.lock(session, (await experiment_row(session, experiment, caller)).id)
        row = locked.experiment
        if row.state == experiments.RUNNING:
            if locked.opened is not None:
                await coordinator.rounds.apply(session, row, locked.opened, StopRequested())
            elif await upstream.mirrored(session, row.id):
                coordinator.rounds.finish_mirrored(session, row, Reason.STOPPED)
            else:
                raise InternalError(f"The experiment {row.id} runs but has no open round.")
            await audit.append(session, caller.token, "experiment.stopped", row.id)
            await session.flush()
            await session.refresh(row)
    await coordinator.board.catch_up()
    return view(row, coordinator.board.quarantined)


def _round_view(row: RoundRow, bytes_up: int) -> RoundView:
    value = from_text(Round, row.state)
    metrics = measured(value)
    record: dict[str, Any] = json.loads(row.record) if row.record else {}
    return RoundView.model_validate(
        {
            "experiment": row.experiment,
            "round": row.number,
            "state": row.phase,
            "cause": row.cause,
            "leased": value.leased,
            "accepted": value.usable,
            "failed": value.lost,
            "evaluated": value.evaluated,
            "metrics": metrics,
            "training": MetricSums(value.training).means(),
            "fairness": {name: spread.to_dict() for name, spread in spreads(value.federated).items()},
            "evaluation": "central" if value.central else "federated" if metrics else None,
            "bytes_up": record.get(BYTES_KEPT, bytes_up),
            "bytes_down": row.bytes_down,
            "seconds": record.get("seconds"),
            "model": record.get("model"),
            "clipped": value.clipped_share,
            "diverged": record.get("diverged", 0),
            "epsilon": record.get("epsilon"),
            "delta": record.get("delta"),
            "participants": record.get("participants", ()),
        }
    )


@router.get(
    "/v1/experiments/{experiment}/rounds", operation_id="listRounds", summary="The rounds of an experiment in order"
)
async def rounds(
    experiment: ExperimentPath,
    coordinator: OpenCoordinator,
    caller: Calling,
    limit: PageLimit = 100,
    cursor: PageCursor = None,
) -> Page[RoundView]:
    """The open one last."""
    async with coordinator.storage.database.read() as session:
        row = await experiment_row(session, experiment, caller)
        rows = await experiments.rounds_page(session, row.id, number_after(cursor, 0), limit + 1)
        sizes = [await uploaded(session, row, entry.number) for entry in rows]
    views = [_round_view(entry, size) for entry, size in zip(rows, sizes, strict=True)]
    return page(rows, limit, lambda entry: entry.number, views)


def model_view(row: ModelRow, best: str | None) -> ModelView:
    """A model version with its lineage."""
    return ModelView(
        sha256=row.sha256,
        experiment=row.experiment,
        round=row.round,
        parent=row.parent,
        metrics=json.loads(row.metrics),
        size=row.size,
        best=row.sha256 == best,
        created_at=instant(row.created_at),
    )


@router.get(
    "/v1/experiments/{experiment}/models", operation_id="listModels", summary="The model versions of an experiment"
)
async def models(
    experiment: ExperimentPath,
    coordinator: OpenCoordinator,
    caller: Calling,
    limit: PageLimit = 100,
    cursor: PageCursor = None,
) -> Page[ModelView]:
    """In order; round 0 is the initial version. The bytes are at ``GET /v1/blobs/{sha256}``."""
    async with coordinator.storage.database.read() as session:
        owner = await experiment_row(session, experiment, caller)
        rows = await experiments.models_page(session, owner.id, number_after(cursor, -1), limit + 1)
    return page(rows, limit, lambda row: row.round, [model_view(row, owner.best) for row in rows])


@router.get("/v1/models/{sha256}", operation_id="getModel", tags=["models"], summary="One model version")
async def model(
    sha256: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")], coordinator: OpenCoordinator, caller: Calling
) -> ModelView:
    """Where it comes from and what it scored; the bytes are at ``GET /v1/blobs/{sha256}``."""
    async with coordinator.storage.database.read() as session:
        row = await experiments.model(session, sha256, caller.population)
        if row is None:
            raise NotFound(f"There is no model version {sha256}.", code="model_unknown")
        owner = await experiments.find(session, row.experiment)
    return model_view(row, owner.best if owner else None)
