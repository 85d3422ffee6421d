"""Joining: what a newcomer must know, and how it becomes a device."""

import json

from fastapi import Response
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import Conflict, Forbidden, NotFound, Unauthenticated
from coterie.protocol import ids
from coterie.protocol.device import (
    NONCE_HEADER,
    PROTOCOL_VERSIONS,
    EnrolRequest,
    EnrolResponse,
    PopulationInfo,
)
from coterie.protocol.schema import DataSchema
from coterie.server.auth.gate import Enrolling, OpenCoordinator, gated_router
from coterie.server.clock import now_ms
from coterie.server.floor import policy_of
from coterie.server.store import devices, events, populations, tokens
from coterie.server.store.devices import client_bounds
from coterie.server.store.tables import DeviceRow, PopulationRow

router = gated_router("device")


async def _population(session: AsyncSession, name: str) -> PopulationRow:
    row = await populations.find(session, name)
    if row is None:
        raise NotFound(f"There is no population {name!r}.")
    return row


@router.get(
    "/v1/device/population", operation_id="getDevicePopulation", summary="What a newcomer must know before it joins"
)
async def population(coordinator: OpenCoordinator, enroller: Enrolling) -> PopulationInfo:
    """The schema that the device's data must fit, and the keys it shall pin."""
    async with coordinator.storage.database.read() as session:
        row = await _population(session, enroller.population)
        signers = await populations.signers(session, row.name)
    return PopulationInfo(
        population=row.name,
        data_schema=DataSchema.from_json(json.loads(row.schema_json)),
        schema_digest=row.schema_digest,
        signers=signers,
        coordinator_key=coordinator.identity.key.public,
        protocol=PROTOCOL_VERSIONS,
    )


@router.post(
    "/v1/device/enrol", operation_id="enrolDevice", status_code=201, summary="Become a device of the population"
)
async def enrol(
    body: EnrolRequest, response: Response, coordinator: OpenCoordinator, enroller: Enrolling
) -> EnrolResponse:
    """Idempotent by public key: the same key gets the same device, and uses the token once."""
    if not set(body.protocol) & set(PROTOCOL_VERSIONS):
        raise Conflict(f"This coordinator speaks the device protocol {PROTOCOL_VERSIONS}.", code="protocol_unsupported")
    async with coordinator.storage.database.read() as session:
        existing = await devices.by_key(session, body.public_key)
        row = await _population(session, enroller.population)
    if existing is None:
        if body.schema_digest != row.schema_digest:
            raise Conflict(
                f"The device checked its data against schema {body.schema_digest[:12]}…; population {row.name} has "
                f"{row.schema_digest[:12]}….",
                hint="Read GET /v1/device/population again and check the data against its schema.",
                code="schema_mismatch",
            )
        _check_endorsed(body, row)
        device = await _create(body, coordinator, enroller)
    else:
        device = _again(existing, enroller)
        response.status_code = 200
    nonce = coordinator.identity.nonces.issue(device)
    response.headers[NONCE_HEADER] = nonce
    return EnrolResponse(device_id=device, nonce=nonce)


def _check_endorsed(body: EnrolRequest, row: PopulationRow) -> None:
    """Hold a newcomer to the population's issuers, where its operator has named any."""
    issuers = policy_of(row).endorsers
    if issuers is None or (body.endorsement is not None and body.endorsement.is_for(body.public_key, issuers)):
        return
    raise Forbidden(
        f"Population {row.name} takes devices that one of its issuers endorses; this one brings "
        + ("no endorsement." if body.endorsement is None else "one that is not of its key, or of another issuer."),
        hint=f"Ask an issuer to endorse the key {body.public_key}, and join with --endorsement FILE.",
        code="endorsement_missing",
    )


def _again(row: DeviceRow, enroller: Enrolling) -> str:
    """The device of a key that is enrolled already, if it is the same device in the same role."""
    if row.revoked_at is not None:
        raise Forbidden("This device was revoked.", hint="Ask the operator.", code="device_revoked")
    if row.population != enroller.population:
        raise Conflict(
            f"This key is enrolled in population {row.population!r} already.",
            hint="Use a key of its own for every population.",
            code="key_in_use",
        )
    is_edge = client_bounds(row) is not None
    if is_edge != (enroller.clients is not None):
        role, other = ("edge aggregator", "device") if is_edge else ("device", "edge aggregator")
        raise Conflict(
            f"This key is enrolled as {role} already, and cannot become {other}.",
            hint="Use a key of its own for every role.",
            code="key_in_use",
        )
    return row.id


async def _create(body: EnrolRequest, coordinator: OpenCoordinator, enroller: Enrolling) -> str:
    async with coordinator.storage.database.write("enrol") as session:
        raced = await devices.by_key(session, body.public_key)
        if raced is not None:
            return _again(raced, enroller)
        if not await tokens.use(session, enroller.token):
            raise Unauthenticated(
                "The enrolment token is used up.", hint="Ask the operator for a new one.", code="token_used_up"
            )
        now = now_ms()
        details = {"name": body.name, "capabilities": body.capabilities.model_dump(mode="json")}
        row = DeviceRow(
            id=ids.new_id(ids.DEVICE),
            population=enroller.population,
            public=body.public_key,
            token=enroller.token,
            details=json.dumps(details),
            min_clients=enroller.clients.fewest if enroller.clients else None,
            max_clients=enroller.clients.most if enroller.clients else None,
            created_at=now,
            seen_at=now,
        )
        session.add(row)
        told = {"device": row.id, "population": row.population, "kind": "edge" if enroller.clients else "device"}
        events.append(session, "device.enrolled", told)
        return row.id
