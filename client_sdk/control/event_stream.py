"""The coordinator's events over one connection, as they come."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final

from coterie.client_sdk.answers import pieces
from coterie.client_sdk.control.sse import messages
from coterie.client_sdk.http import Link
from coterie.errors import CoterieError
from coterie.protocol.control import Event
from coterie.protocol.wire import read_message

SILENCE_S: Final = 2.0
MOST_AHEAD: Final = 100
"""So many events may have come that nobody has asked for yet."""
_ACCEPT: Final[Mapping[str, str]] = {"Accept": "text/event-stream"}


async def read_events(
    link: Link, target: str, *, last: str | None = None, patient: bool = False
) -> AsyncGenerator[Event]:
    """The events of one answer, until it ends.

    target: path and query.
    last: the id of an event; the stream goes on after it.
    patient: whether the stream may be silent for as long as it likes.
    """
    headers = {**_ACCEPT, **({} if last is None else {"Last-Event-ID": last})}
    async with link.stream("GET", target, headers=headers, patient=patient) as response:
        async for message in messages(pieces(response)):
            yield read_message(Event, message.data.encode())


async def follow_events(link: Link, experiment: str | None, last: str | None) -> AsyncGenerator[Event | None]:
    """One connection's events, of an experiment or of all; None after each `SILENCE_S` without any, and when it ends.

    last: the id of an event; the stream goes on after it.
    """
    target = "/v1/events" if experiment is None else f"/v1/events?experiment={experiment}"
    arrived: asyncio.Queue[Event | CoterieError | None] = asyncio.Queue(MOST_AHEAD)

    async def receive() -> None:
        try:
            async with aclosing(read_events(link, target, last=last, patient=True)) as events:
                async for event in events:
                    await arrived.put(event)
            await arrived.put(None)
        except CoterieError as error:
            await arrived.put(error)

    receiver = asyncio.create_task(receive())
    try:
        while True:
            try:
                item = await asyncio.wait_for(arrived.get(), SILENCE_S)
            except TimeoutError:
                yield None
                continue
            if isinstance(item, CoterieError):
                raise item
            yield item
            if item is None:
                return
    finally:
        receiver.cancel()
