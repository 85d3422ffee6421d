"""Fetching messages from a role in their order, and acknowledging each once.

The recipient fetches the first message that it has not acknowledged, whole or by ranges. An acknowledgement deletes the
bytes; the number stays used.
"""

import time
from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import Conflict, Gone, NotFound
from coterie.protocol.session import SEQUENCE_HEADER, Acknowledged
from coterie.server.auth.gate import OpenCoordinator, PartySender, gated_router
from coterie.server.bell import wait
from coterie.server.clock import now_ms
from coterie.server.coordinator import Coordinator
from coterie.server.downloads.ranges import ByteRange, Unsatisfiable, parse_range
from coterie.server.sessions.sending import BINARY, Name, SequencePath
from coterie.server.sessions.standing import box, open_session
from coterie.server.store import mailbox, nonces
from coterie.server.store.mailbox import Box, StoredMessage

LONGEST_WAIT_MS: Final = 30_000
LOOK_AGAIN_S: Final = 5.0
"""Another process may have taken a message, which wakes nobody here."""
router = gated_router("party")
Wait = Annotated[int, Query(ge=0, le=LONGEST_WAIT_MS, description="How long to wait for the message, in milliseconds.")]


@router.get(
    "/v1/party/messages/{stage}/{role}",
    operation_id="fetchMessage",
    summary="The next message from a role",
    response_class=Response,
    responses={
        200: BINARY,
        204: {"description": "None yet: ask again."},
        206: {"description": "The range that was asked for."},
        416: {"description": "The range lies outside of the message."},
    },
)
async def fetch(
    request: Request, stage: Name, role: Name, coordinator: OpenCoordinator, party: PartySender, wait_ms: Wait = 0
) -> Response:
    """The first that is not acknowledged, answered as soon as it is there, and with 204 when there is none by then.
    ``Coterie-Sequence`` is its number; ``ETag`` the digest of its sealed bytes, also of a range.
    """
    until = time.monotonic() + wait_ms / 1000
    place = box(party, stage, role, "from")
    while True:
        turn = coordinator.signals.messages.next_turn(place.turn)
        async with coordinator.storage.database.read() as session:
            message = await mailbox.first_waiting(session, place, with_body=True)
            if message is None:  # a session that has ended has none
                await open_session(session, party.session)
        if message is not None:
            return _answer(request, coordinator, place, message)
        left = until - time.monotonic()
        if left <= 0 or coordinator.signals.closing.is_set():
            return Response(status_code=204, headers={"Retry-After": "0" if wait_ms else "1"})
        await wait(turn, min(left, LOOK_AGAIN_S))


def _answer(request: Request, coordinator: Coordinator, place: Box, row: StoredMessage) -> Response:
    if row.expires_at is not None and row.expires_at <= now_ms():
        raise Gone(
            f"Message {row.sequence} from {place.sender} in stage {place.stage} expired before it was fetched.",
            hint="Ask the partner to send it again as a new message, and acknowledge this one to go on.",
            code="message_expired",
            sequence=row.sequence,
        )
    headers = {"ETag": f'"{row.sha256}"', SEQUENCE_HEADER: str(row.sequence), "Cache-Control": "no-store"}
    headers |= {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    try:
        found = parse_range(request.headers.get("Range"), row.size)
    except Unsatisfiable:
        content = {"Content-Range": f"bytes */{row.size}", "Coterie-Problem": "range_not_satisfiable"}
        return Response(status_code=416, headers={**headers, **content})
    part = found or ByteRange(0, row.size)
    if found is not None:
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{row.size}"
    headers["Content-Length"] = str(part.stop - part.start)
    status = 200 if found is None else 206
    coordinator.metrics.sent.inc(part.stop - part.start)
    if row.body is not None:
        return Response(row.body[part.start : part.stop], status_code=status, headers=headers)
    return StreamingResponse(_pieces(coordinator, row, part), status_code=status, headers=headers)


async def _pieces(coordinator: Coordinator, row: StoredMessage, part: ByteRange) -> AsyncIterator[bytes]:
    async for chunk in coordinator.storage.blobs.parts.read(row.parts or "", part.start, part.stop):
        yield chunk


@router.post(
    "/v1/party/messages/{stage}/{role}/{sequence}/acknowledge",
    operation_id="acknowledgeMessage",
    summary="Say that a message has been processed",
)
async def acknowledge(
    stage: Name, role: Name, sequence: SequencePath, coordinator: OpenCoordinator, party: PartySender
) -> Acknowledged:
    """Its bytes are deleted, and it is never delivered again. Only the message that `fetchMessage` gives may be
    acknowledged; one that was acknowledged before is answered with ``already``.
    """
    place = box(party, stage, role, "from")
    async with coordinator.storage.database.write("acknowledged") as session:
        await nonces.spend(session, party.nonce, party.nonce_expires)
        message = await _to_acknowledge(session, place, sequence)
        if message is None:
            return Acknowledged(state="already", sequence=sequence)
        await mailbox.acknowledge(session, place, sequence, now_ms())
    if message.parts is not None:
        await coordinator.storage.blobs.parts.drop(message.parts)
    return Acknowledged(state="acknowledged", sequence=sequence)


async def _to_acknowledge(session: AsyncSession, place: Box, sequence: int) -> StoredMessage | None:
    """The message of this number; None where it was acknowledged before.

    Raises NotFound ``message_unknown``, Conflict ``message_order``, Gone (``session_ended``, ``session_expired``).
    """
    message = await mailbox.first_waiting(session, place, with_body=False)
    if message is not None and message.sequence == sequence:
        return message  # a session that has ended has none
    await open_session(session, place.session)
    wanted = mailbox.following(await mailbox.last(session, place))
    if sequence >= wanted:
        raise NotFound(
            f"There is no message {sequence} from {place.sender} in stage {place.stage}.",
            hint="Acknowledge the message that was fetched, by its Coterie-Sequence.",
            code="message_unknown",
        )
    if message is not None and message.sequence < sequence:
        raise Conflict(
            f"Message {sequence} from {place.sender} in stage {place.stage} cannot be acknowledged before message "
            f"{message.sequence}.",
            hint="Acknowledge messages in the order in which they are fetched.",
            code="message_order",
            expected=message.sequence,
        )
    return None
