"""Devices, as an operator sees them."""

import json
from typing import Annotated

from fastapi import Path, Query

from coterie.errors import NotFound
from coterie.protocol.control import DeviceView, Page
from coterie.server.auth.gate import Calling, OpenCoordinator, gated_router
from coterie.server.coordinator import Coordinator
from coterie.server.paging import PageCursor, PageLimit, after, instant, page
from coterie.server.rounds.shut_out import WITHDRAWN, shut_out
from coterie.server.store import devices
from coterie.server.store.tables import DeviceRow

router = gated_router("devices")


def _view(coordinator: Coordinator, row: DeviceRow, accepted: int, failures: tuple[int, str] | None) -> DeviceView:
    details = json.loads(row.details)
    # Rows of earlier versions say less.
    said = details.get("capabilities", {})
    return DeviceView(
        id=row.id,
        population=row.population,
        name=details.get("name"),
        public_key=row.public,
        kind="device" if row.max_clients is None else "edge",
        max_clients=row.max_clients,
        state="active" if row.revoked_at is None else "withdrawn" if details.get(WITHDRAWN) else "revoked",
        enrolled_at=instant(row.created_at),
        last_seen_at=instant(coordinator.presence.fleet.last(row.id) or row.seen_at),
        accepted=accepted,
        failed=0 if failures is None else failures[0],
        failure=None if failures is None else failures[1],
        threads=said.get("threads"),
        memory_bytes=said.get("memory_bytes"),
        yardstick_us=said.get("yardstick_us"),
    )


@router.get("/v1/devices", operation_id="listDevices", summary="List devices")
async def index(
    coordinator: OpenCoordinator,
    caller: Calling,
    population: Annotated[str | None, Query(max_length=100)] = None,
    limit: PageLimit = 100,
    cursor: PageCursor = None,
) -> Page[DeviceView]:
    """In the order of their enrolment."""
    population = caller.within(population)
    async with coordinator.storage.database.read() as session:
        rows = await devices.page(session, population, after(cursor) or "", limit + 1)
        accepted = await devices.accepted(session, [row.id for row in rows])
        failures = await devices.failures(session, [row.id for row in rows])
    views = [_view(coordinator, row, accepted.get(row.id, 0), failures.get(row.id)) for row in rows]
    return page(rows, limit, lambda row: row.id, views)


@router.post("/v1/devices/{device}/revoke", operation_id="revokeDevice", summary="Revoke a device")
async def revoke(
    device: Annotated[str, Path(max_length=64)], coordinator: OpenCoordinator, caller: Calling
) -> DeviceView:
    """Idempotent. The task that it holds is taken back; updates accepted before stay counted. Rounds that judge by it
    as their trusted client, and have no update of it, end at once.
    """
    async with coordinator.storage.database.write("revoke") as session:
        row = await session.get(DeviceRow, device)
        if row is None or not caller.reaches(row.population):
            raise NotFound(f"There is no device {device!r}.", code="device_unknown")
        if row.revoked_at is None:
            await shut_out(coordinator.rounds, session, row, "revoked", by=caller.token)
        accepted = await devices.accepted(session, [device])
        failures = await devices.failures(session, [device])
    coordinator.presence.devices.forget(device)
    return _view(coordinator, row, accepted.get(device, 0), failures.get(device))
