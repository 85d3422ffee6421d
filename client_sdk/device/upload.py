"""Sending a finished update in pieces; an upload that broke off goes on where the coordinator's copy ends."""

import base64
from collections.abc import Callable
from typing import Final

from coterie.client_sdk.device.signed import SignedLink
from coterie.client_sdk.http import parsed, problem
from coterie.errors import RemoteError
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.device import UploadReceipt
from coterie.protocol.wire import read_message

PIECE: Final = 4 << 20
ATTEMPTS: Final = 3
_DAMAGED: Final = ("digest_mismatch", "content_digest_mismatch")


async def upload(
    link: SignedLink,
    task: str,
    update: bytes,
    *,
    resume: bool,
    piece: int = PIECE,
    wait_ms: int = 0,
    reached: Callable[[str], None] = lambda point: None,
) -> UploadReceipt:
    """Send an update and return the receipt; after it the coordinator holds the update durably.

    resume: ask first how much of it the coordinator holds already.
    piece: bytes of one request. Sending the same bytes again is harmless: the receipt then says ``already``.
    wait_ms: how long the coordinator may wait with its last answer for the message that comes next (``next``).
    Raises RemoteError; ``digest_mismatch`` only after three whole uploads arrived damaged.
    """
    target = f"/v1/device/tasks/{task}/update"
    sent_to = f"{target}?wait_ms={wait_ms}" if wait_ms else target
    digest = f"sha-256=:{base64.b64encode(bytes.fromhex(sha256_hex(update))).decode()}:"
    offset = await _stored_length(link, target, len(update)) if resume else 0
    damaged = 0
    while True:
        part = update[offset : offset + piece]
        headers = {
            "Content-Type": "application/octet-stream",
            "Upload-Offset": str(offset),
            "Upload-Length": str(len(update)),
            "Repr-Digest": digest,
        }
        try:
            response = await link.request("PATCH", sent_to, body=part, headers=headers, accept=(409,))
        except RemoteError as error:
            damaged += error.reason in _DAMAGED
            if error.reason not in _DAMAGED or damaged >= ATTEMPTS:
                raise
            offset = 0
            continue
        stored = response.headers.get("Upload-Offset", "")
        if response.status_code == 409:
            offset = _next_offset(stored, offset, len(update), response.content)
        elif response.status_code == 200:
            return read_message(UploadReceipt, parsed(response))
        else:
            offset = int(stored) if stored.isdecimal() else offset + len(part)
            reached("uploading")


async def _stored_length(link: SignedLink, target: str, length: int) -> int:
    """How many bytes the coordinator holds; 0 when it does not say, since sending everything is always right."""
    try:
        response = await link.request("HEAD", target)
    except RemoteError as error:
        status = error.details.get("http_status")
        if isinstance(status, int) and 400 <= status < 500:
            # An answer to HEAD has no body, so the reason is unknown: the PATCH that follows learns it.
            return 0
        raise
    stored = response.headers.get("Upload-Offset", "0")
    # Of an update that is there whole an empty last part asks for the receipt again.
    return int(stored) if stored.isdecimal() and int(stored) <= length else 0


def _next_offset(stored: str, offset: int, length: int, content: bytes) -> int:
    """Where to go on after a refused offset. Raises RemoteError when that would go round in circles."""
    if stored.isdecimal() and int(stored) != offset and int(stored) < length:
        return int(stored)
    raise problem(409, content, {})
