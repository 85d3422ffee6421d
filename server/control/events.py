"""Events as a stream (Server-Sent Events): replayed from any point, then live."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Header, Query
from fastapi.responses import StreamingResponse

from coterie.errors import InputError
from coterie.server.auth.caller import Caller
from coterie.server.auth.gate import Calling, OpenCoordinator, gated_router
from coterie.server.bell import wait, waiting
from coterie.server.coordinator import Coordinator
from coterie.server.paging import NUMBER, instant
from coterie.server.store import events, tokens
from coterie.server.store.events import StoredEvent

router = gated_router("events")
BATCH = 200
TOGETHER_S = 0.05
"""Commits that follow each other so closely are looked at once: a busy round commits hundreds of times a second."""


class EventStream(StreamingResponse):
    """A stream of events."""

    media_type = "text/event-stream"


def encode(event: StoredEvent) -> bytes:
    """One event as the stream carries it; ``data`` is one line of JSON."""
    body = {
        "id": event.id,
        "type": event.type,
        "experiment": event.experiment,
        "data": json.loads(event.data),
        "at": instant(event.at).isoformat().replace("+00:00", "Z"),
    }
    return f"id: {event.id}\nevent: {event.type}\ndata: {json.dumps(body)}\n\n".encode()


async def follow(
    coordinator: Coordinator, caller: Caller, last: int, experiment: str | None, *, live: bool = True
) -> AsyncIterator[bytes]:
    """Every event after ``last`` that the caller may see, then those to come, until the coordinator closes or the token
    is no longer valid; without ``live`` only those that there are. A comment line says now and then that it lives.
    """
    yield b"retry: 1000\n\n"
    while not coordinator.signals.closing.is_set():
        ring = coordinator.signals.bell.next_ring()
        async with coordinator.storage.database.read() as session:
            if not await tokens.valid(session, caller.token):
                return
            found = await events.after(session, last, experiment, caller.population, BATCH)
        for event in found:
            yield encode(event)
            last = event.id
        if len(found) == BATCH:
            continue
        if not live:
            return
        left = caller.seconds_left()
        if await wait(
            ring, coordinator.settings.heartbeat_s if left is None else min(left, coordinator.settings.heartbeat_s)
        ):
            with waiting():
                await asyncio.sleep(TOGETHER_S)
        else:
            yield b": heartbeat\n\n"


@router.get(
    "/v1/events",
    operation_id="streamEvents",
    summary="What happened, and what happens",
    response_class=EventStream,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def stream(
    coordinator: OpenCoordinator,
    caller: Calling,
    experiment: Annotated[str | None, Query(max_length=64)] = None,
    after: Annotated[int | None, Query(ge=0, lt=10**18)] = None,
    live: Annotated[bool, Query()] = True,
    last_event_id: Annotated[str | None, Header(max_length=32)] = None,
) -> EventStream:
    """Starts after ``Last-Event-ID``, else after ``after``, else at the first event; with ``experiment``, only that
    experiment's; with ``live=false`` it ends with the newest event. It ends too when the token is revoked or runs out.
    """
    if last_event_id is not None and NUMBER.fullmatch(last_event_id) is None:
        raise InputError(
            "Last-Event-ID must be the id of an event of this stream.",
            hint="Leave it out to begin at the first event.",
            code="cursor_invalid",
        )
    last = int(last_event_id) if last_event_id is not None else after or 0
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return EventStream(follow(coordinator, caller, last, experiment, live=live), headers=headers)
