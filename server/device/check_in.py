"""Check-in: a device asks what to do, and learns what became of what it did."""

from coterie.errors import Conflict
from coterie.protocol.device import PROTOCOL_VERSIONS, CheckIn, CheckInResponse, Task
from coterie.server.auth.gate import OpenCoordinator, SigningDevice, gated_router
from coterie.server.clock import now_ms
from coterie.server.device.assignment import Asker, candidates, lease, repeat
from coterie.server.pace import rested
from coterie.server.store import experiments, tasks

router = gated_router("device")


@router.post("/v1/device/check-in", operation_id="checkIn", summary="Ask for a task, and what became of earlier ones")
async def check_in(body: CheckIn, coordinator: OpenCoordinator, device: SigningDevice) -> CheckInResponse:
    """At most one task per device: a device that holds a lease gets the same task again."""
    if not set(body.protocol) & set(PROTOCOL_VERSIONS):
        raise Conflict(
            f"This coordinator speaks the device protocol {', '.join(map(str, PROTOCOL_VERSIONS))}; the device "
            f"{body.protocol}.",
            hint="Update the older of the two.",
            code="protocol_unsupported",
        )
    coordinator.presence.fleet.keep_report(device.id, body.data)
    busy = coordinator.board.busy(device.population)
    task: Task | None = None
    settled: dict[str, str] = {}
    ended: tuple[str, ...] = ()
    asker = Asker(
        id=device.id,
        population=device.population,
        nonce=device.nonce,
        nonce_expires=device.nonce_expires,
        capabilities=body.capabilities,
        data=body.data,
        clients=device.clients,
    )
    offered = False
    if busy:
        await coordinator.board.current()
        offered = coordinator.board.offers(asker, now_ms())
    if offered or body.pending or body.experiments or (busy and not coordinator.presence.fleet.without_task(device.id)):
        coordinator.presence.fleet.looks_for_task(device.id)
        async with coordinator.storage.database.read() as session:
            settled = await tasks.verdicts(session, device.id, body.pending) if body.pending else {}
            ended = await experiments.not_running(session, device.population, body.experiments)
            leased = await tasks.lease_of(session, device.id)
            offers = await candidates(coordinator, session, asker) if leased is None and offered else []
        if leased is not None:
            coordinator.presence.fleet.holds_a_task(device.id)
        if leased is not None and leased.lease_until > now_ms():
            task = repeat(coordinator, leased)
        elif offers:
            experiment, kind = offers[0]
            task = await lease(coordinator, asker, experiment, kind)
    now = now_ms()
    demand = coordinator.board.demand(device.population, now)
    again = coordinator.presence.pacer.window(device.population, demand, now, took=task is not None)
    accepted = rested(again, coordinator.board.rests_s(device.population))
    return CheckInResponse.model_validate(
        {
            "task": task,
            "idle": None if task else coordinator.board.why_idle(asker),
            "retry_if_accepted": accepted,
            "retry_if_rejected": again,
            "settled": settled,
            "ended": ended,
        }
    )
