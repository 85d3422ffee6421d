"""Uploading an update: in one PATCH or in parts, resumable, checked whole before it is acknowledged.

"Accepted" means: the bytes have the promised digest, the update passed its checks, the file and its folder are synced,
and the row that counts it is committed together with the engine's step. Whatever happens before that leaves nothing
behind but a part that can be continued.
"""

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path as File
from typing import Annotated

from fastapi import Header, Path, Request, Response
from starlette.requests import ClientDisconnect

from coterie.errors import Conflict, InputError, UpdateRefused
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
from coterie.server.store.blobs import sha256_file, storage_full, too_large
from coterie.server.store.tables import TaskRow

router = gated_router("device")
TaskName = Annotated[str, Path(pattern=r"^task_[0-9a-f]{32}$")]
_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):")


@dataclass(frozen=True)
class Part:
    """What the headers say: where this part starts, how long the whole is, and its SHA-256."""

    offset: int
    length: int
    sha256: str


def _part(offset: int, length: int, digest: str) -> Part:
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
        raise InputError(f"{DIGEST_HEADER} holds no base64.", code="digest_missing") from None


@router.head("/v1/device/tasks/{task}/update", operation_id="getUploadOffset", summary="How much of the update is here")
async def offset(task: TaskName, here: Here, device: Signed) -> Response:
    """``Upload-Offset`` tells where to continue."""
    async with here.database.read() as session:
        row = await own(session, task, device.id)
    if masked.awaits_vector(row):
        return Response(headers={UPLOAD_OFFSET_HEADER: str(_held_bytes(here, task))})
    if row.state == tasks.ACCEPTED:
        return Response(headers={UPLOAD_OFFSET_HEADER: str(row.size or 0), UPLOAD_LENGTH_HEADER: str(row.size or 0)})
    if row.state != tasks.LEASED:
        raise refusal(row.state)
    return Response(headers={UPLOAD_OFFSET_HEADER: str(_held_bytes(here, task))})


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
    part = _part(upload_offset, upload_length, repr_digest)
    async with here.database.read() as session:
        row = await own(session, task, device.id)
    message = Task.model_validate_json(row.message)
    limit = min(message.upload_limit, here.settings.update_limit)
    if part.length > limit:
        raise too_large(limit)
    body, digest, size = await _received(request, here, task, part)
    try:
        device.verify(request, digest)
        here.metrics.received.inc(size)
        async with here.uploads.setdefault(task, asyncio.Lock()):
            # Another part may have finished the task while this body came in.
            async with here.database.read() as session:
                row = await own(session, task, device.id)
            return await _take(here, device, row, message, part, body, size)
    finally:
        body.unlink(missing_ok=True)


async def _received(request: Request, here: Coordinator, task: str, part: Part) -> tuple[File, str, int]:
    """The body in a scratch file. A task has one body that is coming in: the newest, since a device that sends another
    has lost the connection of the one before. Whoever holds a task so fills the disk with no more than one update.
    """
    try:
        async with asyncio.timeout(None) as turn:
            before = here.bodies.get(task)
            if before is not None:
                before.reschedule(asyncio.get_running_loop().time())
            here.bodies[task] = turn
            try:
                return await here.blobs.receive(_body(request), limit=part.length - part.offset)
            finally:
                if here.bodies.get(task) is turn:
                    del here.bodies[task]
    except TimeoutError:
        raise Conflict(
            "The device began to send the update of this task anew, on another connection.",
            hint="Send one part of an update at a time.",
            code="upload_superseded",
        ) from None


async def _body(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise InputError("The connection broke off inside the body.", code="body_truncated") from None


async def _take(
    here: Coordinator, device: Signed, row: TaskRow, message: Task, part: Part, body: File, size: int
) -> Response:
    vector = masked.awaits_vector(row)
    if row.state != tasks.LEASED and not vector:
        if row.state == tasks.ACCEPTED and row.upload == part.sha256:
            return _receipt("already", part.sha256)
        raise refusal(row.state)
    if message.secure is not None and not vector:
        raise masked.keys_first()
    whole = here.blobs.scratch_file(row.id)
    held = _held_bytes(here, row.id)
    if part.offset > held:
        raise Conflict(
            f"This part starts at byte {part.offset}, but {held} bytes are here.",
            hint=f"Continue at {UPLOAD_OFFSET_HEADER}.",
            code="offset_mismatch",
            headers={UPLOAD_OFFSET_HEADER: str(held)},
        )
    await asyncio.to_thread(_append, whole, body, part.offset)
    if part.offset + size < part.length:
        if vector:
            await masked.keep_part(here, device, row, size)
        else:
            await acceptance.keep_part(here, device, row, message, size)
        return Response(status_code=204, headers={UPLOAD_OFFSET_HEADER: str(part.offset + size)})
    try:
        if await asyncio.to_thread(sha256_file, whole) != part.sha256:
            raise UpdateRefused(
                f"The {part.length} bytes received do not have the digest that {DIGEST_HEADER} promised.",
                hint="Send the whole update again, from offset 0.",
                code="digest_mismatch",
                headers={UPLOAD_OFFSET_HEADER: "0"},
            )
        take = masked.accept if vector else acceptance.accept
        return _receipt(await take(here, device, row, message, whole, part.sha256, size), part.sha256)
    finally:
        whole.unlink(missing_ok=True)


def _receipt(state: str, sha256: str) -> Response:
    return Response(
        UploadReceipt.model_validate({"state": state, "sha256": sha256}).model_dump_json(),
        media_type="application/json",
    )


def _held_bytes(here: Coordinator, task: str) -> int:
    path = here.blobs.scratch_file(task)
    return path.stat().st_size if path.exists() else 0


def _append(whole: File, body: File, offset: int) -> None:
    """Put a part where it belongs, in place of whatever was there from its offset on: a repeated part is harmless.

    On a full disk the file ends at the offset, so that the part can be sent again.
    """
    if offset == 0:
        body.replace(whole)
        return
    try:
        with whole.open("r+b") as target, body.open("rb") as source:
            target.seek(offset)
            while chunk := source.read(1 << 20):
                target.write(chunk)
            target.truncate()
    except OSError as error:
        with whole.open("r+b") as target:
            target.truncate(offset)
        raise storage_full(error) or error from error
