"""Secure aggregation: what a device that has trained says to the others of its attempt, and what it waits for.

A device reports *trained* with its keys. From then on it asks for each message in turn by a long poll, answers it, and
sends its masked vector as it would an update. What it says is kept as one row for each phase; saying it again is
answered alike, and saying something else is refused. With ``wait_ms`` the answer to what it says brings the message
that comes next, so that it need not ask for it.
"""

from fastapi import Response

from coterie.protocol.secagg import AdvertiseKeys, Agreement, MessageReceipt, Reveal, Shares, ToClient
from coterie.server.auth.gate import OpenCoordinator, SignedDevice, SigningDevice, gated_router
from coterie.server.coordinator import Coordinator
from coterie.server.device import speaking, trained
from coterie.server.device.relay import Awaited
from coterie.server.device.waiting import Kept, WaitBehind, WaitQuery, awaited_message, message_behind, named
from coterie.server.paths import TaskPath
from coterie.server.store import attempts

router = gated_router("device")


@router.post(
    "/v1/device/tasks/{task}/secure/keys",
    operation_id="advertiseKeys",
    summary="Report training done and send keys",
    response_model=MessageReceipt,
)
async def keys(
    task: TaskPath, body: AdvertiseKeys, coordinator: OpenCoordinator, device: SigningDevice, wait_ms: WaitBehind = 0
) -> Response:
    """The task's work counts in its round from here on; its result stays with the device until it is masked."""
    kept = await trained.report(coordinator, device, task, body)
    return await _receipt(coordinator, kept, attempts.KEYS, task, device, wait_ms)


@router.post(
    "/v1/device/tasks/{task}/secure/shares",
    operation_id="dealShares",
    summary="Deal sealed shares",
    response_model=MessageReceipt,
)
async def shares(
    task: TaskPath, body: Shares, coordinator: OpenCoordinator, device: SigningDevice, wait_ms: WaitBehind = 0
) -> Response:
    """The boxes are sealed end to end: nobody but the neighbours can open them."""
    return await _say(coordinator, device, task, "shares", body, wait_ms)


@router.post(
    "/v1/device/tasks/{task}/secure/agreement",
    operation_id="agree",
    summary="Sign the list of survivors",
    response_model=MessageReceipt,
)
async def agreement(
    task: TaskPath, body: Agreement, coordinator: OpenCoordinator, device: SigningDevice, wait_ms: WaitBehind = 0
) -> Response:
    """Only in the mode ``consistent``."""
    return await _say(coordinator, device, task, "agreement", body, wait_ms)


@router.post(
    "/v1/device/tasks/{task}/secure/reveal",
    operation_id="reveal",
    summary="Open the sum",
    response_model=MessageReceipt,
)
async def reveal(
    task: TaskPath, body: Reveal, coordinator: OpenCoordinator, device: SigningDevice, wait_ms: WaitBehind = 0
) -> Response:
    """Shares of the survivors' own masks, and of the keys of those who dropped out: what opens the sum and no more."""
    return await _say(coordinator, device, task, "reveal", body, wait_ms)


@router.get(
    "/v1/device/tasks/{task}/secure/{awaited}",
    operation_id="awaitMessage",
    summary="Wait for the next message of an attempt",
    responses={
        200: {
            "model": ToClient,
            "description": "Of `roster` Roster, of `shares` SharesFor, of `survivors` Survivors, of `agreements` "
            "Agreements, of `outcome` Outcome.",
        },
        204: {"description": "Not yet: ask again."},
    },
)
async def message(
    task: TaskPath, awaited: Awaited, coordinator: OpenCoordinator, device: SigningDevice, wait_ms: WaitQuery = 0
) -> Response:
    """Answered as soon as the attempt is that far, and with 204 when it is not by then."""
    attempt = await named(coordinator, task, device.id)
    found = await awaited_message(coordinator, attempt, task, device.id, awaited, wait_ms)
    if found is None:
        return Response(status_code=204, headers={"Retry-After": "0" if wait_ms else "1"})
    return _json(found.model_dump_json())


async def _say(
    coordinator: Coordinator,
    device: SignedDevice,
    task: str,
    phase: str,
    body: Shares | Agreement | Reveal,
    wait_ms: int,
) -> Response:
    kept = await speaking.say(coordinator, device, task, phase, body)
    return await _receipt(coordinator, kept, phase, task, device, wait_ms)


async def _receipt(
    coordinator: Coordinator, kept: Kept, phase: str, task: str, device: SignedDevice, wait_ms: int
) -> Response:
    behind = await message_behind(coordinator, kept, phase, task, device.id, wait_ms)
    return _json(MessageReceipt(state=kept.state, next=behind).model_dump_json())


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")
