"""Sending a message to a role: in one PATCH or in parts, numbered without a gap, durable before it is acknowledged.

"Accepted" means: the bytes have the promised digest, they are synced, and the row that numbers them is committed. A
small message is kept in its row; a large one has its room reserved before its first byte is kept, comes in parts,
resumable by offset, and stays as the parts in which it came.
"""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from fastapi import Header, Path, Request, Response
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import Conflict, InputError, TooLarge, UpdateRefused
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.device import DIGEST_HEADER, UPLOAD_LENGTH_HEADER, UPLOAD_OFFSET_HEADER
from coterie.protocol.session import KEYS_STAGE, SendReceipt
from coterie.server.auth.gate import OpenCoordinator, PartySender, SignedParty, gated_router
from coterie.server.clock import now_ms
from coterie.server.coordinator import Coordinator
from coterie.server.incoming import UploadPart, part_of, refuse_when_full, streamed_body
from coterie.server.sessions.standing import box, open_session
from coterie.server.store import mailbox, nonces
from coterie.server.store.mailbox import Box, StoredMessage
from coterie.server.store.received import Received
from coterie.server.store.sessions import SessionStanding

INLINE: Final = 1 << 16
"""Sealed bytes up to which a message is kept in its row: one sync instead of three."""
KEYS_LIMIT: Final = 1 << 12
MOST_WAITING: Final = 4096
"""Messages of one sender that may wait at a time."""
router = gated_router("party")
Name = Annotated[str, Path(max_length=32, pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
"""A stage or a role."""
SequencePath = Annotated[int, Path(ge=0, le=1 << 53)]
BINARY: Final = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


@router.head(
    "/v1/party/messages/{stage}/{role}/{sequence}",
    operation_id="getMessageOffset",
    summary="How much of a message to a role is here",
)
async def offset(
    stage: Name, role: Name, sequence: SequencePath, coordinator: OpenCoordinator, party: PartySender
) -> Response:
    """``Upload-Offset`` tells where to continue; ``Upload-Length`` is there when the message was accepted."""
    async with coordinator.storage.database.read() as session:
        await open_session(session, party.session)
        place = box(party, stage, role, "to")
        message = await mailbox.message(session, place, sequence)
    if message is not None and message.is_whole:
        return Response(headers={UPLOAD_OFFSET_HEADER: str(message.size), UPLOAD_LENGTH_HEADER: str(message.size)})
    received = 0 if message is None else await coordinator.storage.blobs.parts.received_bytes(place.parts_of(sequence))
    return Response(headers={UPLOAD_OFFSET_HEADER: str(received)})


@router.patch(
    "/v1/party/messages/{stage}/{role}/{sequence}",
    operation_id="sendMessage",
    summary="Send a sealed message to a role, or the next part of it",
    responses={200: {"model": SendReceipt}, 204: {"description": "The part is here; send the next one."}},
    openapi_extra={"requestBody": BINARY},
)
async def send(
    request: Request,
    stage: Name,
    role: Name,
    sequence: SequencePath,
    coordinator: OpenCoordinator,
    party: PartySender,
    upload_offset: Annotated[int, Header(ge=0)],
    upload_length: Annotated[int, Header(ge=1)],
    repr_digest: Annotated[str, Header(max_length=200)],
) -> Response:
    """Numbers begin at 0 and leave no gap. The same bytes again are answered with ``already``. Up to 64 KiB are sent in
    one part.
    """
    sending = Sending(party, stage, role, sequence, part_of(upload_offset, upload_length, repr_digest))
    part = sending.part
    if part.length <= INLINE:
        return await _post(coordinator, sending, await _small(request, coordinator, sending))
    name = (await _reserve(coordinator, sending)).parts_of(sequence)
    body = await coordinator.incoming.receive(request, name, part)
    try:
        party.check_body(body.sha256)
        coordinator.metrics.received.inc(body.size)
        async with coordinator.incoming.turn(name):
            return await _take(coordinator, sending, name, body)
    finally:
        body.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Sending:
    """A message that a party sends, or a part of it.

    stage, role: as the party says them.
    """

    party: SignedParty
    stage: str
    role: str
    sequence: int
    part: UploadPart


@dataclass(frozen=True)
class MessageStatus:
    """How a message stands in this transaction.

    before: its reservation, or the message itself where it was accepted before, with these very bytes
        (``is_accepted``).
    """

    session: SessionStanding
    box: Box
    before: StoredMessage | None
    is_accepted: bool


async def _stand(session: AsyncSession, sending: Sending) -> MessageStatus:
    """How a message stands that may be sent: its session is open, its stage and role are there, it is not too large,
    its number is the next or was used for the same bytes, and there is room for it. Raises a refusal by name otherwise.
    """
    row = await open_session(session, sending.party.session)
    place = box(sending.party, sending.stage, sending.role, "to")
    part, sequence = sending.part, sending.sequence
    is_key = sending.stage == KEYS_STAGE
    limit = KEYS_LIMIT if is_key else sending.party.terms.message_limit
    if part.length > limit:
        raise TooLarge(
            f"A message of {part.length} sealed bytes exceeds the {limit} bytes that session {row.id} allows.",
            hint="Send it in several messages, or ask the operator for a session with a higher message_limit.",
            code="message_too_large",
            limit=limit,
        )
    if is_key and sequence:
        raise Conflict(
            f"Role {place.sender} offers its key to {place.recipient} as message 0, and no other.",
            hint="Make another session for other keys.",
            code="message_order",
            expected=0,
        )
    last = await mailbox.last(session, place)
    before = last
    if last is not None and last.sequence != sequence:
        before = await mailbox.message(session, place, sequence) if sequence < last.sequence else None
    if before is not None and before.is_whole:
        if (before.sha256, before.size) == (part.sha256, part.length):
            return MessageStatus(row, place, before, is_accepted=True)
        raise Conflict(
            f"Message {sequence} from {place.sender} to {place.recipient} in stage {place.stage} was accepted with "
            "other bytes.",
            hint="Give every message a number of its own, and repeat one only with the same sealed bytes.",
            code="message_differs",
        )
    wanted = mailbox.following(last)
    if sequence != wanted:
        raise Conflict(
            f"The next message from {place.sender} to {place.recipient} in stage {place.stage} of session {row.id} has "
            f"number {wanted}, not {sequence}.",
            hint="Send messages in the order of their numbers, without a gap.",
            code="message_order",
            expected=wanted,
        )
    if not is_key:  # keys have room always: without them nobody can send
        await _check_room(session, row, place.sender, part.length, before)
    return MessageStatus(row, place, before, is_accepted=False)


async def _small(request: Request, coordinator: Coordinator, sending: Sending) -> bytes:
    """The body of a message that is sent in one part."""
    part = sending.part
    body = bytearray()
    async for chunk in streamed_body(request):
        body += chunk
        if len(body) > part.length:
            break
    digest = sha256_hex(body)
    sending.party.check_body(digest)
    coordinator.metrics.received.inc(len(body))
    if part.offset or len(body) != part.length:
        raise InputError(
            f"A message of {part.length} bytes is sent in one part, and this one has {len(body)} from byte "
            f"{part.offset} on.",
            hint=f"Send messages of up to {INLINE} bytes whole.",
            code="body_truncated",
        )
    if digest != part.sha256:
        raise _other_digest(part)
    return bytes(body)


async def _take(coordinator: Coordinator, sending: Sending, name: str, body: Received) -> Response:
    parts, part = coordinator.storage.blobs.parts, sending.part
    async with coordinator.storage.database.read() as session:
        if (await _stand(session, sending)).is_accepted:
            return _receipt("already", sending)
    received = await parts.received_bytes(name) if part.offset else 0
    if part.offset > received:
        raise Conflict(
            f"This part starts at byte {part.offset}, but {received} bytes were received.",
            hint=f"Continue at {UPLOAD_OFFSET_HEADER}.",
            code="offset_mismatch",
            headers={UPLOAD_OFFSET_HEADER: str(received)},
        )
    if body.size:
        await refuse_when_full(parts.add(name, part.offset, body))
    if part.offset + body.size < part.length:
        return Response(status_code=204, headers={UPLOAD_OFFSET_HEADER: str(part.offset + body.size)})
    if (body.sha256 if part.offset == 0 else await parts.digest(name, part.length)) != part.sha256:
        await parts.drop(name)
        raise _other_digest(part)
    await coordinator.storage.blobs.keep_parts(name, point="posted")
    return await _post(coordinator, sending, None)


async def _reserve(coordinator: Coordinator, sending: Sending) -> Box:
    """Keep room for a message before its first byte is kept, so that unfinished ones count too. Each part extends it:
    what is not reserved any more is deleted.
    """
    async with coordinator.storage.database.write("reserved") as session:
        found = await _stand(session, sending)
        if not found.is_accepted:
            expires_at = _expires_at(found.session, found.box)
            size = sending.part.length
            await mailbox.reserve(session, found.box, sending.sequence, found.before, size=size, expires_at=expires_at)
    return found.box


async def _post(coordinator: Coordinator, sending: Sending, body: bytes | None) -> Response:
    async with coordinator.storage.database.write("posted") as session:
        await nonces.spend(session, sending.party.nonce, sending.party.nonce_expires)
        # Nobody ends the session, and nobody else numbers a message, between this look and this message.
        found = await _stand(session, sending)
        if found.is_accepted:
            return _receipt("already", sending)
        if body is None and (found.before is None or (found.before.expires_at or 0) <= now_ms()):
            # Its parts may have been deleted since they were looked at.
            raise Conflict(
                f"The reservation of message {sending.sequence} expired while its last part came in.",
                hint="Send it again from its beginning.",
                code="offset_mismatch",
                headers={UPLOAD_OFFSET_HEADER: "0"},
            )
        await mailbox.post(
            session,
            found.box,
            sending.sequence,
            found.before,
            body=body,
            size=sending.part.length,
            sha256=sending.part.sha256,
            expires_at=_expires_at(found.session, found.box),
        )
    coordinator.signals.messages.turned(found.box.turn)
    return _receipt("accepted", sending)


def _expires_at(row: SessionStanding, place: Box) -> int:
    # Keys wait for a partner that joins late.
    lasts = row.expires_at if place.stage == KEYS_STAGE else now_ms() + row.message_ttl_ms
    return min(lasts, row.expires_at)


async def _check_room(
    session: AsyncSession, row: SessionStanding, sender: str, size: int, before: StoredMessage | None
) -> None:
    """Raise Conflict ``mailbox_full`` where a message of this size has no room beside what waits or is coming in.

    before: the reservation of this very message.
    """
    loads = await mailbox.load(session, row.id, now_ms())
    own = loads.get(sender, mailbox.Load(0, 0))
    more = size - (0 if before is None else before.size)
    for what, amount, limit in (
        (f"bytes of {sender}", own.size + more, row.party_quota),
        ("bytes of all parties", sum(load.size for load in loads.values()) + more, row.session_quota),
        (f"messages of {sender}", own.messages + (before is None), MOST_WAITING),
    ):
        if amount > limit:
            raise Conflict(
                f"The mailbox of session {row.id} is full: it needs {amount} {what}; the limit is {limit}.",
                hint="Send again when the recipient has acknowledged what waits.",
                code="mailbox_full",
            )


def _other_digest(part: UploadPart) -> UpdateRefused:
    return UpdateRefused(
        f"The {part.length} bytes received do not have the digest that {DIGEST_HEADER} promised.",
        hint="Send the whole message again, from offset 0.",
        code="digest_mismatch",
        headers={UPLOAD_OFFSET_HEADER: "0"},
    )


def _receipt(state: Literal["accepted", "already"], sending: Sending) -> Response:
    receipt = SendReceipt(state=state, sequence=sending.sequence, sha256=sending.part.sha256)
    return Response(receipt.model_dump_json(), media_type="application/json")
