"""Server-sent events: bytes in, messages out (WHATWG HTML, "Server-sent events", section 9.2.6)."""

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    """One event of a stream.

    id: what to send as Last-Event-ID to go on after it; empty when the stream never gave one.
    """

    id: str
    event: str
    data: str


async def messages(lines: AsyncIterable[str]) -> AsyncIterator[Message]:
    """The messages of a stream of lines without their ends.

    Comments are skipped; a message cut off by the end is dropped.
    """
    identifier, event, data = "", "", list[str]()
    async for line in lines:
        if not line:
            if data:
                yield Message(identifier, event or "message", "\n".join(data))
            event, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            event = value
        elif field == "id" and "\0" not in value:
            identifier = value
