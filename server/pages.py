"""Health, metrics and documentation."""

from pathlib import Path
from typing import Literal

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from pydantic import BaseModel
from sqlalchemy import text

from coterie.errors import Unavailable
from coterie.server.auth.gate import OpenCoordinator, gated_router

router = gated_router("service")
DOCS = Path(__file__).parent / "docs.html"
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'"
)


class Health(BaseModel):
    """How the process is."""

    status: Literal["ok", "ready"]


@router.get("/healthz", operation_id="getHealth", summary="Whether the process answers")
async def healthz() -> Health:
    """Says nothing about the database."""
    return Health(status="ok")


@router.get("/readyz", operation_id="getReadiness", summary="Whether requests can be served")
async def readyz(coordinator: OpenCoordinator) -> Health:
    """503 while closing, or when the database does not answer."""
    if coordinator.signals.closing.is_set():
        raise Unavailable("The coordinator is closing.", code="closing")
    async with coordinator.storage.database.read() as session:
        await session.execute(text("SELECT 1"))
    return Health(status="ready")


@router.get("/metrics", operation_id="getMetrics", summary="Counters for Prometheus", response_class=Response)
async def metrics(coordinator: OpenCoordinator) -> Response:
    """Names routes and outcomes, never devices."""
    coordinator.metrics.running.set(coordinator.board.count)
    return Response(coordinator.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get(
    "/v1/openapi.json", operation_id="getOpenapi", summary="This API as OpenAPI 3.1", response_class=JSONResponse
)
async def openapi(request: Request) -> JSONResponse:
    """Stable operation ids."""
    return JSONResponse(request.app.openapi())


@router.get(
    "/", operation_id="getRoot", summary="Leads to the documentation", response_class=RedirectResponse, status_code=307
)
async def root() -> RedirectResponse:
    """For browsers that were given the coordinator's address alone."""
    return RedirectResponse("/docs")


@router.get("/docs", operation_id="getDocs", summary="This API for people", response_class=HTMLResponse)
async def docs() -> HTMLResponse:
    """One page that reads /v1/openapi.json; nothing is loaded from elsewhere."""
    return HTMLResponse(DOCS.read_text("utf-8"), headers={"Content-Security-Policy": POLICY})
