"""Uploading blobs by their digest."""

from typing import Annotated, Literal

from fastapi import Query, Request, Response

from coterie.protocol.control import BlobRef
from coterie.server.auth.gate import Calling, OpenCoordinator, gated_router
from coterie.server.paths import BlobPath
from coterie.server.store import audit, blob_rows

router = gated_router("blobs")
BlobKind = Annotated[
    Literal["plan", "graph", "model", "frozen", "evaluation"],
    Query(
        description="What the blob is. Evaluation data is never served to anybody; the others are, to whoever "
        "knows the digest."
    ),
]


@router.put(
    "/v1/blobs/{sha256}",
    operation_id="putBlob",
    status_code=201,
    summary="Store a blob under its SHA-256",
    openapi_extra={
        "requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def put(
    sha256: BlobPath,
    kind: BlobKind,
    request: Request,
    response: Response,
    coordinator: OpenCoordinator,
    caller: Calling,
) -> BlobRef:
    """Streams into the store; acknowledged when file and row are durable. A blob that is here already is answered with
    200; with a token for one population, one that such a token has sent already.
    """
    size = await coordinator.storage.blobs.put(
        "blobs", sha256, request.stream(), point="upload", limit=coordinator.settings.blob_limit
    )
    async with coordinator.storage.database.write("blob") as session:
        await caller.confirm(session)
        is_new = await blob_rows.keep(session, sha256, size, kind)
        if caller.population is not None:
            is_new = await blob_rows.keep_for(session, sha256, caller.population)
        if is_new:
            await audit.append(session, caller.token, "blob.stored", sha256, {"kind": kind, "size": size})
        else:
            response.status_code = 200
    return BlobRef(sha256=sha256, size=size)
