"""Server-sent events: bytes in, messages out (WHATWG HTML, "Server-sent events", section 9.2.6)."""

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Final

from coterie.errors import RemoteError


@dataclass(frozen=True)
class Message:
    """One event of a stream.

    id: what to send as Last-Event-ID to go on after it; empty when the stream never gave one.
    """

    id: str
    event: str
    data: str


MESSAGE_BYTES: Final = 1 << 20
"""The longest message, and the longest line, that is taken."""


async def _lines(pieces: AsyncIterable[bytes]) -> AsyncIterator[str]:
    """The lines of a body that comes in pieces, without their ends. Raises RemoteError (``answer_too_large``)."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")
        if len(rest) > MESSAGE_BYTES:
            raise _too_large()


async def messages(pieces: AsyncIterable[bytes]) -> AsyncIterator[Message]:
    """The messages of a stream that comes in pieces.

    Comments are skipped; a message cut off by the end is dropped. Raises RemoteError (``answer_too_large``).
    """
    identifier, event, data, size = "", "", list[str](), 0
    async for line in _lines(pieces):
        size = size + len(line) if line else 0
        if size > MESSAGE_BYTES:
            raise _too_large()
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


def _too_large() -> RemoteError:
    return RemoteError(
        f"The stream of events has one of more than {MESSAGE_BYTES} bytes.",
        hint="Check that the URL is that of a coterie coordinator.",
        code="answer_too_large",
    )
