"""Bodies that come in, of updates and of messages: in parts, resumable, one at a time for each thing that is sent."""

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

import obstore
from fastapi import Request
from starlette.requests import ClientDisconnect

from coterie.errors import Conflict, InputError
from coterie.protocol.device import DIGEST_HEADER, UPLOAD_LENGTH_HEADER, UPLOAD_OFFSET_HEADER
from coterie.server.store.blobs import BlobStore, storage_full
from coterie.server.store.received import Received

_T = TypeVar("_T")
_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):")


@dataclass(frozen=True)
class UploadPart:
    """What the headers say: where this part starts, how long the whole is, and its SHA-256."""

    offset: int
    length: int
    sha256: str


def part_of(offset: int, length: int, digest: str) -> UploadPart:
    """What the headers of a part say. Raises InputError (``digest_missing``, ``request_invalid``)."""
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise InputError(
            f"{DIGEST_HEADER} must be sha-256=:<base64 of 32 bytes>:, the digest of the whole update.",
            code="digest_missing",
        )
    if offset > length:
        raise InputError(
            f"The part starts at byte {offset} of an update of {length} bytes.",
            hint=f"Send {UPLOAD_OFFSET_HEADER} where the part starts and {UPLOAD_LENGTH_HEADER} of the whole update.",
            code="request_invalid",
        )
    try:
        return UploadPart(offset, length, base64.b64decode(match[1], validate=True).hex())
    except binascii.Error:
        raise InputError(f"{DIGEST_HEADER} is not valid base64.", code="digest_missing") from None


class IncomingBodies:
    """The bodies that this process is receiving, each by the name of what is sent."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._bodies: dict[str, asyncio.Timeout] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn(self, name: str) -> asyncio.Lock:
        """The lock under which a part of this is taken; it is remembered for as long as somebody holds it."""
        return self._turns.setdefault(name, asyncio.Lock())

    @property
    def turns(self) -> int:
        """How many locks are remembered."""
        return len(self._turns)

    async def receive(self, request: Request, name: str, part: UploadPart) -> Received:
        """The body in a scratch file, hashed once while it arrives; the caller deletes the file.

        name: of what is sent, such as a task. It has one body that is coming in: the newest, since a device that sends
        another has lost the connection of the one before. Whoever holds a task so fills the disk with no more than one
        update.
        Raises Conflict ``upload_superseded`` when a newer one comes.
        """
        try:
            async with asyncio.timeout(None) as turn:
                before = self._bodies.get(name)
                if before is not None:
                    before.reschedule(asyncio.get_running_loop().time())
                self._bodies[name] = turn
                try:
                    return await self._blobs.receive(streamed_body(request), limit=part.length - part.offset)
                finally:
                    if self._bodies.get(name) is turn:
                        del self._bodies[name]
        except TimeoutError:
            raise Conflict(
                "The sender began to send the same thing anew, on another connection.",
                hint="Send one part at a time.",
                code="upload_superseded",
            ) from None


async def streamed_body(request: Request) -> AsyncIterator[bytes]:
    """The chunks of a request's body. Raises InputError (``body_truncated``)."""
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise InputError("The connection broke off inside the body.", code="body_truncated") from None


async def refuse_when_full(writing: Awaitable[_T]) -> _T:
    """The result of a write. Raises StorageError ``storage_full`` for want of space."""
    try:
        return await writing
    except (OSError, obstore.exceptions.BaseError) as error:
        raise storage_full(error) or error from error
