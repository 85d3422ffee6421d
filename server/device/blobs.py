"""Serving blobs: immutable, so cacheable for ever, by anybody who knows the digest. Updates and evaluation data are
never served.
"""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path as File

import structlog
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from coterie.errors import NotFound
from coterie.protocol.delta import ASKED
from coterie.server.auth.gate import OpenCoordinator, gated_router
from coterie.server.coordinator import Coordinator
from coterie.server.downloads.compression import Variant
from coterie.server.downloads.ranges import Unsatisfiable, parse_range
from coterie.server.paths import BlobPath
from coterie.server.store import blob_rows

router = gated_router("blobs")
log = structlog.get_logger("coterie.server")
FOR_EVER = "public, max-age=31536000, immutable"
MOST_HELD = 4


def accepts_zstd(header: str) -> bool:
    """Whether an Accept-Encoding header allows zstd."""
    for entry in header.split(","):
        coding, *parameters = (part.strip().lower() for part in entry.split(";"))
        if coding == "zstd":
            return not any(
                parameter.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for parameter in parameters
            )
    return False


def listed(header: str) -> list[str]:
    """The digests that an If-None-Match header names."""
    return [tag.strip().removeprefix("W/").strip('"') for tag in header.split(",") if tag.strip()]


async def _delta(request: Request, coordinator: Coordinator, sha256: str, size: int) -> tuple[str, File] | None:
    """The digest of a version that the client has, and the delta that makes the blob of it (RFC 3229); None where the
    client does not ask, or nothing would be gained.
    """
    asked = [word.partition(";")[0].strip() for word in request.headers.get("A-IM", "").split(",")]
    if ASKED not in asked:
        return None
    for base in listed(request.headers.get("If-None-Match", ""))[:MOST_HELD]:
        async with coordinator.storage.database.read() as session:
            row = await blob_rows.find(session, base)
        if row is None or row.kind != "model" or row.size != size:
            continue
        made = await coordinator.downloads.deltas.delta_file(base, sha256, size)
        if made is not None:
            return base, made
    return None


async def _size(coordinator: Coordinator, sha256: str) -> int:
    async with coordinator.storage.database.read() as session:
        row = await blob_rows.find(session, sha256)
    if row is None or row.kind not in blob_rows.PUBLIC_KINDS:
        raise NotFound(f"Blob {sha256} is not available.", code="blob_unknown")
    return row.size


@router.head("/v1/blobs/{sha256}", operation_id="headBlob", summary="Whether a blob is there, and how large it is")
@router.get(
    "/v1/blobs/{sha256}",
    operation_id="getBlob",
    summary="The bytes of a blob",
    response_class=Response,
    responses={
        200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
        206: {"description": "The range that was asked for."},
        226: {"description": "A delta from the version that Delta-Base names, for clients that ask for one (A-IM)."},
        304: {"description": "The client has it."},
        416: {"description": "The range lies outside of the blob."},
    },
)
async def get(sha256: BlobPath, request: Request, coordinator: OpenCoordinator) -> Response:
    """ETag is the digest. Ranges are of the bytes as stored; a whole blob may come zstd-compressed. Who asks for a
    delta (``A-IM: coterie-delta``) and names model versions that it has (``If-None-Match``) may get the difference.
    """
    size = await _size(coordinator, sha256)
    headers = {
        "ETag": f'"{sha256}"',
        "Cache-Control": FOR_EVER,
        "Accept-Ranges": "bytes",
        "Vary": "Accept-Encoding, A-IM",
    }
    tags = {tag.strip().removeprefix("W/") for tag in request.headers.get("If-None-Match", "").split(",")}
    if tags & {"*", f'"{sha256}"', f'"{sha256}-zstd"'}:
        return Response(status_code=304, headers=headers)
    if_range = request.headers.get("If-Range", f'"{sha256}"')
    try:
        part = parse_range(request.headers.get("Range"), size) if if_range == f'"{sha256}"' else None
    except Unsatisfiable:
        return Response(
            status_code=416,
            headers={**headers, "Content-Range": f"bytes */{size}", "Coterie-Problem": "range_not_satisfiable"},
        )
    if part is not None:
        headers |= {"Content-Range": f"bytes {part.start}-{part.stop - 1}/{size}"}
        return await _send(request, coordinator, sha256, Variant(part.start, part.stop, 206, None), headers)
    delta = await _delta(request, coordinator, sha256, size)
    if delta is not None:
        base, packed = delta
        headers |= {"IM": ASKED, "Delta-Base": f'"{base}"', "Cache-Control": "no-store"}
        return await _send(request, coordinator, sha256, Variant(0, packed.stat().st_size, 226, packed), headers)
    if accepts_zstd(request.headers.get("Accept-Encoding", "")):
        packed = await coordinator.downloads.compression.packed(sha256, size)
        if packed is not None:
            headers |= {"Content-Encoding": "zstd", "ETag": f'"{sha256}-zstd"'}
            return await _send(request, coordinator, sha256, Variant(0, packed.stat().st_size, 200, packed), headers)
    return await _send(request, coordinator, sha256, Variant(0, size, 200, None), headers)


async def _send(
    request: Request, coordinator: Coordinator, sha256: str, variant: Variant, headers: dict[str, str]
) -> Response:
    length = variant.stop - variant.start
    headers = {**headers, "Content-Length": str(length), "Content-Type": "application/octet-stream"}
    if request.method == "HEAD":
        return Response(status_code=variant.status, headers=headers)

    async def body() -> AsyncIterator[bytes]:
        source = (
            coordinator.storage.blobs.read("blobs", sha256, variant.start, variant.stop)
            if variant.packed is None
            else coordinator.downloads.compression.read(variant.packed)
        )
        whole = hashlib.sha256() if variant.status == 200 and variant.packed is None else None
        async for chunk in source:
            if whole is not None:
                whole.update(chunk)
            coordinator.rounds.traffic.count_sent(sha256, len(chunk))
            coordinator.metrics.sent.inc(len(chunk))
            yield chunk
        if whole is not None and whole.hexdigest() != sha256:
            coordinator.metrics.damaged.inc()
            log.error("a stored blob is damaged", file=coordinator.storage.blobs.where("blobs", sha256))

    return StreamingResponse(body(), status_code=variant.status, headers=headers)
