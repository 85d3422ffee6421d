"""Uploading an update: in one PATCH or in parts, resumable, checked whole before it is acknowledged.

"Accepted" means: the bytes have the promised digest, the update passed its checks, the file and its folder are synced,
and the row that counts it is committed together with the engine's step. Whatever happens before that leaves nothing
behind but a part that can be continued.
"""

from typing import Annotated, Any, Literal

from fastapi import Header, Path, Request, Response

from coterie.errors import Conflict, CoterieError, StorageError, UpdateRefused
from coterie.protocol.device import (
    DIGEST_HEADER,
    UPLOAD_LENGTH_HEADER,
    UPLOAD_OFFSET_HEADER,
    Task,
    UploadReceipt,
)
from coterie.server.auth.gate import OpenCoordinator, SigningDevice, gated_router
from coterie.server.coordinator import Coordinator
from coterie.server.device import acceptance, masked
from coterie.server.device.task_states import own, refusal
from coterie.server.device.waiting import Kept, WaitBehind, message_behind
from coterie.server.incoming import UploadPart, part_of, refuse_when_full
from coterie.server.store import tasks
from coterie.server.store.blobs import too_large
from coterie.server.store.received import Received
from coterie.server.store.tables import TaskRow

router = gated_router("device")
UploadTaskPath = Annotated[str, Path(pattern=r"^task_[0-9a-f]{32}$")]


@router.head("/v1/device/tasks/{task}/update", operation_id="getUploadOffset", summary="How much of the update is here")
async def offset(task: UploadTaskPath, coordinator: OpenCoordinator, device: SigningDevice) -> Response:
    """``Upload-Offset`` tells where to continue."""
    async with coordinator.storage.database.read() as session:
        row = await own(session, task, device.id)
    if masked.awaits_vector(row):
        return Response(headers={UPLOAD_OFFSET_HEADER: str(await coordinator.storage.blobs.parts.received_bytes(task))})
    if row.state == tasks.ACCEPTED:
        return Response(headers={UPLOAD_OFFSET_HEADER: str(row.size or 0), UPLOAD_LENGTH_HEADER: str(row.size or 0)})
    if row.state != tasks.LEASED:
        raise refusal(row.state)
    return Response(headers={UPLOAD_OFFSET_HEADER: str(await coordinator.storage.blobs.parts.received_bytes(task))})


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
    task: UploadTaskPath,
    coordinator: OpenCoordinator,
    device: SigningDevice,
    upload_offset: Annotated[int, Header(ge=0)],
    upload_length: Annotated[int, Header(ge=1)],
    repr_digest: Annotated[str, Header(max_length=200)],
    wait_ms: WaitBehind = 0,
) -> Response:
    """The same bytes again are answered with ``already``. Only a masked vector has a message that comes next."""
    part = part_of(upload_offset, upload_length, repr_digest)
    async with coordinator.storage.database.read() as session:
        row = await own(session, task, device.id)
    message = Task.model_validate_json(row.message)
    limit = min(message.upload_limit, coordinator.settings.update_limit)
    if part.length > limit:
        raise too_large(limit)
    body = await coordinator.incoming.receive(request, task, part)
    try:
        device.check_body(body.sha256)
        coordinator.metrics.received.inc(body.size)
        async with coordinator.incoming.turn(task):
            # Another part may have finished the task while this body came in.
            async with coordinator.storage.database.read() as session:
                row = await own(session, task, device.id)
            taken = await _take(coordinator, device, row, message, part, body)
    finally:
        body.path.unlink(missing_ok=True)
    if isinstance(taken, Response):
        return taken
    # Nothing of the upload is held meanwhile: its sender may begin anew.
    behind = await message_behind(coordinator, taken, masked.PHASE, task, device.id, wait_ms)
    return _receipt(taken.state, part.sha256, behind)


async def _take(
    coordinator: Coordinator, device: SigningDevice, row: TaskRow, message: Task, part: UploadPart, body: Received
) -> Response | Kept:
    """Take a part. Returns the answer, but for a whole masked vector, for whose sender there is more to come."""
    vector = masked.awaits_vector(row)
    if row.state != tasks.LEASED and not vector:
        if row.state == tasks.ACCEPTED and row.upload == part.sha256:
            return Kept("already", row.attempt) if row.attempt else _receipt("already", part.sha256)
        raise refusal(row.state)
    if message.secure is not None and not vector:
        raise masked.keys_first()
    received = await coordinator.storage.blobs.parts.received_bytes(row.id) if part.offset else 0
    if part.offset > received:
        raise Conflict(
            f"This part starts at byte {part.offset}, but {received} bytes were received.",
            hint=f"Continue at {UPLOAD_OFFSET_HEADER}.",
            code="offset_mismatch",
            headers={UPLOAD_OFFSET_HEADER: str(received)},
        )
    if part.offset + body.size < part.length:
        await refuse_when_full(coordinator.storage.blobs.parts.add(row.id, part.offset, body))
        if vector:
            await masked.keep_part(coordinator, device, row, body.size)
        else:
            await acceptance.keep_part(coordinator, device, row, message, body.size)
        return Response(status_code=204, headers={UPLOAD_OFFSET_HEADER: str(part.offset + body.size)})
    whole = await _joined(coordinator, row.id, part, body) if part.offset else body
    try:
        if whole.sha256 != part.sha256:
            raise UpdateRefused(
                f"The {part.length} bytes received do not have the digest that {DIGEST_HEADER} promised.",
                hint="Send the whole update again, from offset 0.",
                code="digest_mismatch",
                headers={UPLOAD_OFFSET_HEADER: "0"},
            )
        taken = await _accept(coordinator, device, row, message, whole, body.size)
    except StorageError:
        raise  # the parts stay, so that only the last one is sent again
    except CoterieError:
        await _forget(coordinator, row.id, part)
        raise
    finally:
        whole.path.unlink(missing_ok=True)
    await _forget(coordinator, row.id, part)
    return taken


async def _accept(
    coordinator: Coordinator, device: SigningDevice, row: TaskRow, message: Task, whole: Received, size: int
) -> Response | Kept:
    if masked.awaits_vector(row):
        return await masked.accept(coordinator, device, row, message, whole, size)
    return _receipt(await acceptance.accept(coordinator, device, row, message, whole, size), whole.sha256)


async def _joined(coordinator: Coordinator, task: str, part: UploadPart, body: Received) -> Received:
    """The whole update: the parts that came before, and the last one."""
    blobs = coordinator.storage.blobs
    return await refuse_when_full(blobs.receive(blobs.parts.join(task, part.offset, body), limit=part.length))


async def _forget(coordinator: Coordinator, task: str, part: UploadPart) -> None:
    """Drop the parts of an upload that is over."""
    if part.offset:
        await coordinator.storage.blobs.parts.drop(task)


def _receipt(state: Literal["accepted", "already"], sha256: str, behind: dict[str, Any] | None = None) -> Response:
    return Response(
        UploadReceipt(state=state, sha256=sha256, next=behind).model_dump_json(),
        media_type="application/json",
    )
