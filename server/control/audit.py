"""The audit trail."""

import json

from coterie.protocol.audit import AuditEntry
from coterie.protocol.control import Page
from coterie.server.auth.gate import OpenCoordinator, gated_router
from coterie.server.paging import PageCursor, PageLimit, instant, number_after, page
from coterie.server.store import audit
from coterie.server.store.tables import AuditRow

router = gated_router("audit")


@router.get("/v1/audit", operation_id="listAudit", summary="Who did what, the oldest first")
async def index(coordinator: OpenCoordinator, limit: PageLimit = 100, cursor: PageCursor = None) -> Page[AuditEntry]:
    """Append-only; a changed or missing entry breaks the chain of digests."""
    async with coordinator.storage.database.read() as session:
        rows = await audit.page(session, number_after(cursor, 0), limit + 1)
    return page(rows, limit, lambda row: row.id, [_view(row) for row in rows])


def _view(row: AuditRow) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        at=instant(row.at),
        actor=row.principal,
        action=row.action,
        subject=row.target,
        data=json.loads(row.detail),
        previous=row.previous,
        digest=row.digest,
    )
