"""Every error as ``application/problem+json`` (RFC 9457) with ``code``, ``hint`` and ``doc``."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from coterie.errors import DOCUMENTATION, CoterieError, InternalError, StorageError, Unavailable
from coterie.protocol.device import PROBLEM_MEDIA_TYPE
from coterie.server.store.blobs import no_space, storage_full
from coterie.server.store.dialect import is_full
from coterie.server.store.intact import lost, missing

TITLES = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    410: "Gone",
    412: "Precondition failed",
    408: "Too slow",
    413: "Too large",
    415: "Unsupported media type",
    416: "Range not satisfiable",
    422: "Not acceptable as it is",
    500: "Internal error",
    503: "Not ready",
    507: "Storage full",
}
CODES = {
    404: "not_found",
    408: "body_stalled",
    413: "too_large",
    405: "method_not_allowed",
    416: "range_not_satisfiable",
}
LONGEST_PATH = 400
log = structlog.get_logger("coterie.server")


class ProblemResponse(JSONResponse):
    """A problem document."""

    media_type = PROBLEM_MEDIA_TYPE


def problem(
    request: Request,
    *,
    status: int,
    code: str,
    detail: str,
    hint: str | None = None,
    extra: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Write a problem document. A response to HEAD carries its code in ``Coterie-Problem`` as well, having no body."""
    body: dict[str, Any] = {
        "type": f"/problems/{code.replace('_', '-')}",
        "title": TITLES.get(status, "Error"),
        "status": status,
        "detail": detail,
        "instance": _path(request),
        "code": code,
        "hint": hint,
        "doc": f"{DOCUMENTATION}#{code.replace('_', '-')}",
        "trace_id": request.scope.get("coterie.trace"),
    }
    taken = {name: value for name, value in (extra or {}).items() if name not in body}
    return ProblemResponse({**body, **taken}, status_code=status, headers={**(headers or {}), "Coterie-Problem": code})


def _path(request: Request) -> str:
    """The path, cut where a stranger made it long: an answer is no larger than it needs to be."""
    path = request.url.path
    return path if len(path) <= LONGEST_PATH else path[:LONGEST_PATH] + "…"


def _json_safe(value: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(dict(value), default=str))


async def _refused(request: Request, error: Exception) -> Response:
    error = cast(CoterieError, error)
    if error.status >= 500 and not isinstance(error, StorageError | Unavailable):
        return await _unexpected(request, error)
    if error.reason == "storage_lost":
        log.error("the coordinator's folder is gone", detail=error.message, hint=error.hint)
    headers: dict[str, str] = {str(name): str(value) for name, value in error.details.pop("headers", {}).items()}
    if error.status == 401 and "Authorization" not in request.headers and "Signature-Input" not in request.headers:
        headers["WWW-Authenticate"] = "Bearer"
    return problem(
        request,
        status=error.status,
        code=error.reason,
        detail=error.message,
        hint=error.hint,
        extra=_json_safe(error.details),
        headers=headers,
    )


async def _invalid(request: Request, error: Exception) -> Response:
    found = [
        {"pointer": "/" + "/".join(str(part) for part in entry["loc"]), "detail": _plain(entry["msg"])}
        for entry in cast(RequestValidationError, error).errors()
    ]
    where = "; ".join(f"{entry['pointer']}: {entry['detail']}" for entry in found[:5])
    return problem(
        request,
        status=422,
        code="request_invalid",
        detail=f"The request does not have the documented form: {where}.",
        hint="Compare it with /v1/openapi.json.",
        extra={"errors": found},
    )


def _plain(message: str) -> str:
    """What pydantic says of a fault, without its prefix for rules of ours and without a full stop."""
    return message.removeprefix("Value error, ").removesuffix(".")


async def _http(request: Request, error: Exception) -> Response:
    error = cast(HTTPException, error)
    code = CODES.get(error.status_code, "request_refused")
    detail, hint = str(error.detail).rstrip(".") + ".", "Compare the request with /v1/openapi.json."
    if error.status_code in (404, 405):
        detail, hint = f"There is no {request.method} {_path(request)}.", "The routes are listed at /docs."
    elif error.status_code == 413:
        hint = "Send less."
    elif error.status_code == 408:
        hint = "Send it again; an upload goes on where it stopped."
    elif isinstance(error.__cause__, ValueError | RecursionError):
        code, detail = "request_invalid", "The body is not valid UTF-8 JSON, or nested too deeply."
    return problem(request, status=error.status_code, code=code, detail=detail, hint=hint, headers=error.headers)


def _missing(request: Request, error: Exception) -> StorageError | None:
    """The refusal where a file of the coordinator's own folder, or all of it, is gone; None for any other error."""
    folder: Path = request.app.state.coordinator.settings.folder.resolve()
    if not isinstance(error, FileNotFoundError):
        return None
    if not folder.is_dir():
        return lost(folder, "The coordinator's folder")
    path = Path(str(error.filename or ""))
    return missing(path) if path.is_relative_to(folder) else None


async def _unexpected(request: Request, error: Exception) -> Response:
    known = storage_full(error) or _missing(request, error)
    if known is not None:
        return await _refused(request, known)
    trace = request.scope.get("coterie.trace")
    log.error("request failed", trace_id=trace, method=request.method, path=request.url.path, exc_info=error)
    return problem(
        request,
        status=500,
        code=InternalError.code,
        detail="The coordinator broke one of its own promises; this is a bug.",
        hint=f"Report it with the trace id {trace}; the coordinator's log has the details.",
    )


async def _database(request: Request, error: Exception) -> Response:
    if is_full(cast(DBAPIError, error)):
        return await _refused(request, no_space())
    return await _unexpected(request, error)


def install(app: FastAPI) -> None:
    """Make every error of this application a problem document."""
    app.add_exception_handler(CoterieError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(DBAPIError, _database)
    app.add_exception_handler(OSError, _unexpected)
    app.add_exception_handler(Exception, _unexpected)
