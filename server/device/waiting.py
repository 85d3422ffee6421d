"""Waiting for the next message of an attempt, as a question of its own or behind the message that was just kept."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from fastapi import Query

from coterie.protocol.secagg import ToClient
from coterie.server.bell import wait_for_either
from coterie.server.coordinator import Coordinator
from coterie.server.device.relay import Awaited, message_for
from coterie.server.device.task_states import member
from coterie.server.store import attempts

LONGEST_WAIT_MS: Final = 30_000
LOOK_AGAIN_S: Final = 5.0
"""Another process may have moved the attempt on, which rings no bell here."""
AFTER: Final[Mapping[str, Awaited]] = {
    "keys": "roster",
    "shares": "shares",
    "masked": "survivors",
    "agreement": "agreements",
    "reveal": "outcome",
}
"""The phase of a message -> what comes next; after a masked vector that is the list of survivors in both modes."""
WaitQuery = Annotated[
    int, Query(ge=0, le=LONGEST_WAIT_MS, description="How long to wait for the message, in milliseconds.")
]
WaitBehind = Annotated[
    int,
    Query(
        ge=0,
        le=LONGEST_WAIT_MS,
        description="How long to wait, once this message is kept, for the one that comes next, in milliseconds.",
    ),
]


@dataclass(frozen=True)
class Kept:
    """A message that is kept.

    state: ``already`` where it was kept before.
    attempt: of which attempt it is.
    turn: set when the attempt moves on from where this message found it; None where it may have done so before.
    """

    state: Literal["accepted", "already"]
    attempt: str
    turn: asyncio.Event | None = None


async def named(coordinator: Coordinator, task: str, device: str) -> str:
    """The attempt of a device's own task; empty where it has none, or is unknown: then the first look tells."""
    async with coordinator.storage.database.read() as session:
        return await attempts.name_of(session, task, device) or ""


async def awaited_message(
    coordinator: Coordinator,
    attempt: str,
    task: str,
    device: str,
    awaited: Awaited,
    wait_ms: int,
    turn: asyncio.Event | None = None,
) -> ToClient | None:
    """A message for the device, as soon as the attempt is that far; None where it is not by then, where the coordinator
    closes, and where the device asks anew: one wait for each task is what a device can make the coordinator hold.

    turn: waited for before the first look. Raises what `message_for` does.
    """
    signals = coordinator.signals
    until = time.monotonic() + wait_ms / 1000
    with signals.waits.newest(task) as superseded:
        if turn is not None and wait_ms and not signals.closing.is_set():
            await wait_for_either((turn, superseded), min(wait_ms / 1000, LOOK_AGAIN_S))
        while True:
            turn = signals.turns.next_turn(attempt)
            async with coordinator.storage.database.read() as session:
                found = await message_for(coordinator, session, await member(session, task, device), device, awaited)
            left = until - time.monotonic()
            if found is not None or left <= 0 or signals.closing.is_set() or superseded.is_set():
                return found
            await wait_for_either((turn, superseded), min(left, LOOK_AGAIN_S))


async def message_behind(
    coordinator: Coordinator, kept: Kept, phase: str, task: str, device: str, wait_ms: int
) -> dict[str, Any] | None:
    """What comes after a message that is kept; None where it is not there by then, and where nobody waits for it."""
    if not wait_ms:
        return None
    found = await awaited_message(coordinator, kept.attempt, task, device, AFTER[phase], wait_ms, kept.turn)
    return None if found is None else found.model_dump(mode="json")
