"""Uploading an update: in one PATCH or in parts, resumable, checked whole before it is acknowledged.

"Accepted" means: the bytes have the promised digest, the update passed its checks, the file and its folder are synced,
and the row that counts it is committed together with the engine's step. Whatever happens before that leaves nothing
behind but a part that can be continued.
"""

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from pathlib import Path as File
from typing import Annotated, TypeVar

import obstore
from fastapi import Header, Path, Request, Response
from starlette.requests import ClientDisconnect

from coterie.errors import Conflict, CoterieError, InputError, StorageError, UpdateRefused
from coterie.protocol.device import (
    DIGEST_HEADER,
    UPLOAD_LENGTH_HEADER,
    UPLOAD_OFFSET_HEADER,
    Task,
    UploadReceipt,
)
from coterie.server.auth.gate import Here, Signed, gated_router
from coterie.server.coordinator import Coordinator
from coterie.server.device import acceptance, masked
from coterie.server.device.task_states import own, refusal
from coterie.server.store import tasks
from coterie.server.store.blobs import storage_full, too_large
from coterie.server.store.tables import TaskRow

router = gated_router("device")
TaskName = Annotated[str, Path(pattern=r"^task_[0-9a-f]{32}$")]
_T = TypeVar("_T")
_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):")


@dataclass(frozen=True)
class Part:
    """What the headers say: where this part starts, how long the whole is, and its SHA-256."""

    offset: int
    length: int
    sha256: str


@dataclass(frozen=True)
class Body:
    """What came in a request, in a scratch file. sha256: of these bytes; size: how many there are."""

    path: File
    sha256: str
    size: int


def part_of(offset: int, length: int, digest: str) -> Part:
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
        return Part(offset, length, base64.b64decode(match[1], validate=True).hex())
    except binascii.Error:
        raise InputError(f"{DIGEST_HEADER} is not valid base64.", code="digest_missing") from None


@router.head("/v1/device/tasks/{task}/update", operation_id="getUploadOffset", summary="How much of the update is here")
async def offset(task: TaskName, here: Here, device: Signed) -> Response:
    """``Upload-Offset`` tells where to continue."""
    async with here.database.read() as session:
        row = await own(session, task, device.id)
    if masked.awaits_vector(row):
        return Response(headers={UPLOAD_OFFSET_HEADER: str(await here.blobs.parts.held(task))})
    if row.state == tasks.ACCEPTED:
        return Response(headers={UPLOAD_OFFSET_HEADER: str(row.size or 0), UPLOAD_LENGTH_HEADER: str(row.size or 0)})
    if row.state != tasks.LEASED:
        raise refusal(row.state)
    return Response(headers={UPLOAD_OFFSET_HEADER: str(await here.blobs.parts.held(task))})


@router.patch(
    "/v1/device/tasks/{task}/update",
    operation_id="uploadUpdate",
    summary="Send the update, or the next part of it",
    responses={200: {"model": UploadReceipt}, 204: {"description": "The part is here; send the next one."}},
    openapi_extra={
        "requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def upload(
    request: Request,
    task: TaskName,
    here: Here,
    device: Signed,
    upload_offset: Annotated[int, Header(ge=0)],
    upload_length: Annotated[int, Header(ge=1)],
    repr_digest: Annotated[str, Header(max_length=200)],
) -> Response:
    """The same bytes again are answered with ``already``."""
    part = part_of(upload_offset, upload_length, repr_digest)
    async with here.database.read() as session:
        row = await own(session, task, device.id)
    message = Task.model_validate_json(row.message)
    limit = min(message.upload_limit, here.settings.update_limit)
    if part.length > limit:
        raise too_large(limit)
    path, digest, size = await received(request, here, task, part)
    body = Body(path, digest, size)
    try:
        device.check_body(digest)
        here.metrics.received.inc(size)
        async with here.uploads.setdefault(task, asyncio.Lock()):
            # Another part may have finished the task while this body came in.
            async with here.database.read() as session:
                row = await own(session, task, device.id)
            return await _take(here, device, row, message, part, body)
    finally:
        path.unlink(missing_ok=True)


async def received(request: Request, here: Coordinator, task: str, part: Part) -> tuple[File, str, int]:
    """The body in a scratch file, its SHA-256 and its size.

    task: or another name for what is sent. A task has one body that is coming in: the newest, since a device that sends
    another has lost the connection of the one before. Whoever holds a task so fills the disk with no more than one
    update.
    """
    try:
        async with asyncio.timeout(None) as turn:
            before = here.bodies.get(task)
            if before is not None:
                before.reschedule(asyncio.get_running_loop().time())
            here.bodies[task] = turn
            try:
                return await here.blobs.receive(streamed_body(request), limit=part.length - part.offset)
            finally:
                if here.bodies.get(task) is turn:
                    del here.bodies[task]
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


async def _take(here: Coordinator, device: Signed, row: TaskRow, message: Task, part: Part, body: Body) -> Response:
    vector = masked.awaits_vector(row)
    if row.state != tasks.LEASED and not vector:
        if row.state == tasks.ACCEPTED and row.upload == part.sha256:
            return _receipt("already", part.sha256)
        raise refusal(row.state)
    if message.secure is not None and not vector:
        raise masked.keys_first()
    held = await here.blobs.parts.held(row.id) if part.offset else 0
    if part.offset > held:
        raise Conflict(
            f"This part starts at byte {part.offset}, but {held} bytes are here.",
            hint=f"Continue at {UPLOAD_OFFSET_HEADER}.",
            code="offset_mismatch",
            headers={UPLOAD_OFFSET_HEADER: str(held)},
        )
    if part.offset + body.size < part.length:
        await kept(here.blobs.parts.add(row.id, part.offset, body.path))
        if vector:
            await masked.keep_part(here, device, row, body.size)
        else:
            await acceptance.keep_part(here, device, row, message, body.size)
        return Response(status_code=204, headers={UPLOAD_OFFSET_HEADER: str(part.offset + body.size)})
    whole = await _joined(here, row.id, part, body) if part.offset else body
    try:
        if whole.sha256 != part.sha256:
            raise UpdateRefused(
                f"The {part.length} bytes received do not have the digest that {DIGEST_HEADER} promised.",
                hint="Send the whole update again, from offset 0.",
                code="digest_mismatch",
                headers={UPLOAD_OFFSET_HEADER: "0"},
            )
        take = masked.accept if vector else acceptance.accept
        state = await take(here, device, row, message, whole.path, part.sha256, body.size)
    except StorageError:
        raise  # the parts stay, so that only the last one is sent again
    except CoterieError:
        await _forget(here, row.id, part)
        raise
    finally:
        whole.path.unlink(missing_ok=True)
    await _forget(here, row.id, part)
    return _receipt(state, part.sha256)


async def _joined(here: Coordinator, task: str, part: Part, body: Body) -> Body:
    """The whole update: the parts that came before, and the last one."""
    path = here.blobs.scratch_file(task)
    try:
        digest = await kept(here.blobs.parts.join(task, part.offset, body.path, path))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Body(path, digest, part.length)


async def kept(writing: Awaitable[_T]) -> _T:
    """The result of a write. Raises StorageError ``storage_full`` for want of space."""
    try:
        return await writing
    except (OSError, obstore.exceptions.BaseError) as error:
        raise storage_full(error) or error from error


async def _forget(here: Coordinator, task: str, part: Part) -> None:
    """Drop the parts of an upload that is over."""
    if part.offset:
        await here.blobs.parts.drop(task)


def _receipt(state: str, sha256: str) -> Response:
    return Response(
        UploadReceipt.model_validate({"state": state, "sha256": sha256}).model_dump_json(),
        media_type="application/json",
    )
