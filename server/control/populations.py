"""Populations and the keys whose plans they accept."""

import json
from typing import Annotated

from fastapi import Path, Response
from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import Conflict, NotFound
from coterie.privacy.ledger.events import EACH, YEAR, Bound
from coterie.protocol.canonical import canonical_json
from coterie.protocol.control import Page, PolicyChange, PopulationCreate, PopulationPolicy, PopulationView
from coterie.protocol.conversion import to_json
from coterie.protocol.schema import DataSchema
from coterie.protocol.signing import PUBLIC_PATTERN
from coterie.protocol.wire import message_error
from coterie.server.auth.gate import Calling, OpenCoordinator, gated_router
from coterie.server.control.idempotency import OnceOnly
from coterie.server.coordinator import Coordinator
from coterie.server.floor import changed, check_names, check_signer, policy_of, to_row
from coterie.server.paging import PageCursor, PageLimit, after, instant, page
from coterie.server.store import audit, events, populations
from coterie.server.store.tables import PopulationRow

router = gated_router("populations")
PopulationPath = Annotated[str, Path(max_length=100)]
Public = Annotated[str, Path(pattern=PUBLIC_PATTERN)]


async def view(coordinator: Coordinator, session: AsyncSession, row: PopulationRow) -> PopulationView:
    """A population as it stands."""
    return PopulationView(
        name=row.name,
        data_schema=DataSchema.from_json(json.loads(row.schema_json)),
        schema_digest=row.schema_digest,
        signers=await populations.signers(session, row.name),
        client_state="none" if row.client_state == "none" else "kept",
        coordinator_key=coordinator.identity.key.public,
        policy=policy_of(row),
        devices=await populations.device_count(session, row.name),
        created_at=instant(row.created_at),
    )


async def find_population(session: AsyncSession, name: str) -> PopulationRow:
    """The population of this name. Raises NotFound."""
    row = await populations.find(session, name)
    if row is None:
        raise NotFound(
            f"There is no population {name[:64]!r}.",
            hint="`coterie list populations` shows them (GET /v1/populations); the first `coterie submit` makes one.",
            code="population_unknown",
        )
    return row


@router.post("/v1/populations", operation_id="createPopulation", status_code=201, summary="Create a population")
async def create(
    body: PopulationCreate, response: Response, coordinator: OpenCoordinator, caller: Calling, once: OnceOnly
) -> PopulationView:
    """A population of this name with the same schema is answered as it stands (200), and the given signers are added to
    it.
    """
    async with coordinator.storage.database.write("population") as session:
        replayed = await once.earlier(session, response) is not None
        row = await populations.find(session, body.name)
        if row is not None and row.schema_digest != body.data_schema.digest:
            raise Conflict(
                f"Population {body.name!r} has another schema.",
                hint="A schema never changes: choose another name.",
                code="population_exists",
            )
        if row is not None and row.client_state != body.client_state:
            raise Conflict(
                f"Population {body.name!r} has client_state {row.client_state!r}, not {body.client_state!r}.",
                hint="Whether devices keep state never changes: choose another name.",
                code="population_exists",
            )
        if row is None:
            schema = canonical_json(to_json(body.data_schema)).decode()
            row = await populations.add(
                session, body.name, schema, body.data_schema.digest, client_state=body.client_state
            )
            await audit.append(session, caller.token, "population.created", body.name)
            events.append(session, "population.created", {"population": body.name})
        else:
            response.status_code = 200
        known = await populations.signers(session, body.name)
        for public in body.signers:
            if public not in known:
                check_signer(body.name, policy_of(row), public)
            if await populations.allow(session, body.name, public):
                await audit.append(session, caller.token, "signer.allowed", body.name, {"public": public})
        if not replayed:
            once.remember(session, body.name)
        await session.flush()
        return await view(coordinator, session, row)


@router.get("/v1/populations", operation_id="listPopulations", summary="List populations by name")
async def index(
    coordinator: OpenCoordinator, caller: Calling, limit: PageLimit = 100, cursor: PageCursor = None
) -> Page[PopulationView]:
    """By name; with a token for one population, that one."""
    async with coordinator.storage.database.read() as session:
        rows = await populations.page(session, caller.population, after(cursor) or "", limit + 1)
        views = [await view(coordinator, session, row) for row in rows[:limit]]
    return page(rows, limit, lambda row: row.name, views)


@router.get("/v1/populations/{name}", operation_id="getPopulation", summary="One population")
async def show(name: PopulationPath, coordinator: OpenCoordinator) -> PopulationView:
    """As it stands."""
    async with coordinator.storage.database.read() as session:
        return await view(coordinator, session, await find_population(session, name))


@router.put(
    "/v1/populations/{name}/signers/{public}", operation_id="allowSigner", summary="Accept a researcher's plans"
)
async def allow(name: PopulationPath, public: Public, coordinator: OpenCoordinator, caller: Calling) -> PopulationView:
    """Idempotent. Devices that enrolled before have pinned the earlier keys and refuse the new one until they enrol
    again. Refused where the population's policy names its signers (``population_policy``): change the policy then.
    """
    async with coordinator.storage.database.write("population") as session:
        row = await find_population(session, name)
        if public not in await populations.signers(session, name):
            check_signer(name, policy_of(row), public)
        if await populations.allow(session, name, public):
            await audit.append(session, caller.token, "signer.allowed", name, {"public": public})
        await session.flush()
        return await view(coordinator, session, row)


@router.patch(
    "/v1/populations/{name}", operation_id="changePolicy", summary="Change the floor under a population's experiments"
)
async def change(
    name: PopulationPath, body: PolicyChange, coordinator: OpenCoordinator, caller: Calling
) -> PopulationView:
    """Idempotent. Experiments that run keep what they were started with, but for the limits of ε, which hold from now
    on: the ledger has them as entries.
    """
    check_names(body)
    async with coordinator.storage.database.write("policy") as session:
        row = await find_population(session, name)
        before = policy_of(row)
        try:
            after = changed(before, body)
        except ValidationError as error:
            raise message_error(PolicyChange, error) from None
        if after != before:
            row.policy = to_row(after)
            changes = body.model_dump(mode="json", exclude_unset=True, exclude={"signers"})
            if after.signers_only != before.signers_only:
                changes["signers_only"] = after.signers_only
            await audit.append(session, caller.token, "policy.changed", name, changes)
            events.append(session, "population.policy", {"population": name})
            for scope, bound in _limits(after):
                await coordinator.rounds.spending.ledger.limit(session, name, scope, bound)
        if body.signers is not None:
            for public in await populations.replace_signers(session, name, body.signers):
                action = "signer.allowed" if public in body.signers else "signer.removed"
                await audit.append(session, caller.token, action, name, {"public": public})
        await session.flush()
        return await view(coordinator, session, row)


def _limits(policy: PopulationPolicy) -> tuple[tuple[str, Bound | None], ...]:
    """The ledger's limits that a policy means."""

    def bound(epsilon: float | None) -> Bound | None:
        return None if epsilon is None or policy.delta is None else Bound(epsilon, policy.delta)

    return (EACH, bound(policy.max_epsilon_per_experiment)), (YEAR, bound(policy.max_epsilon_per_year))
