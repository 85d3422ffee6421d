"""Secure aggregation: what a device that has trained says to the others of its attempt, and what it waits for.

A device reports *trained* with its keys. From then on it asks for each message in turn by a long poll, answers it, and
sends its masked vector as it would an update. What it says is kept as one row for each phase; saying it again is
answered alike, and saying something else is refused.
"""

import time
from typing import Annotated, Literal

from fastapi import Query, Response
from pydantic import BaseModel

from coterie.protocol.secagg import AdvertiseKeys, Agreement, Reveal, Shares, ToClient
from coterie.server.auth.gate import OpenCoordinator, SigningDevice, gated_router
from coterie.server.bell import wait
from coterie.server.device import speaking, trained
from coterie.server.device.relay import Awaited, message_for
from coterie.server.device.task_states import member
from coterie.server.paths import TaskPath
from coterie.server.store import attempts

LONGEST_WAIT_MS = 30_000
LOOK_AGAIN_S = 5.0
"""Another process may have moved the attempt on, which rings no bell here."""
router = gated_router("device")
WaitQuery = Annotated[
    int, Query(ge=0, le=LONGEST_WAIT_MS, description="How long to wait for the message, in milliseconds.")
]


class MessageReceipt(BaseModel):
    """The message is kept. ``already``: this very message was kept before."""

    state: Literal["accepted", "already"]


@router.post(
    "/v1/device/tasks/{task}/secure/keys", operation_id="advertiseKeys", summary="Report training done and send keys"
)
async def keys(
    task: TaskPath, body: AdvertiseKeys, coordinator: OpenCoordinator, device: SigningDevice
) -> MessageReceipt:
    """The task's work counts in its round from here on; its result stays with the device until it is masked."""
    return MessageReceipt(state=await trained.report(coordinator, device, task, body))


@router.post("/v1/device/tasks/{task}/secure/shares", operation_id="dealShares", summary="Deal sealed shares")
async def shares(task: TaskPath, body: Shares, coordinator: OpenCoordinator, device: SigningDevice) -> MessageReceipt:
    """The boxes are sealed end to end: nobody but the neighbours can open them."""
    return MessageReceipt(state=await speaking.say(coordinator, device, task, "shares", body))


@router.post("/v1/device/tasks/{task}/secure/agreement", operation_id="agree", summary="Sign the list of survivors")
async def agreement(
    task: TaskPath, body: Agreement, coordinator: OpenCoordinator, device: SigningDevice
) -> MessageReceipt:
    """Only in the mode ``consistent``."""
    return MessageReceipt(state=await speaking.say(coordinator, device, task, "agreement", body))


@router.post("/v1/device/tasks/{task}/secure/reveal", operation_id="reveal", summary="Open the sum")
async def reveal(task: TaskPath, body: Reveal, coordinator: OpenCoordinator, device: SigningDevice) -> MessageReceipt:
    """Shares of the survivors' own masks, and of the keys of those who dropped out: what opens the sum and no more."""
    return MessageReceipt(state=await speaking.say(coordinator, device, task, "reveal", body))


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
    until = time.monotonic() + wait_ms / 1000
    while True:
        async with coordinator.storage.database.read() as session:
            turn = coordinator.signals.turns.next_turn(await attempts.name_of(session, task, device.id) or "")
            found = await message_for(coordinator, session, await member(session, task, device.id), device.id, awaited)
        if found is not None:
            return Response(found.model_dump_json(), media_type="application/json")
        left = until - time.monotonic()
        if left <= 0 or coordinator.signals.closing.is_set():
            return Response(status_code=204, headers={"Retry-After": "0" if wait_ms else "1"})
        await wait(turn, min(left, LOOK_AGAIN_S))
