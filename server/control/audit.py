"""The audit trail."""

from coterie.protocol import control
from coterie.protocol.control import Page
from coterie.server.auth.gate import Here, gated_router
from coterie.server.control.paging import Cursor, Limit, instant, number_after, page
from coterie.server.store import audit

router = gated_router("audit")


class AuditEntry(control.AuditEntry):
    """An entry with its place in the chain: ``digest`` covers the other fields and ``previous``, the digest before."""

    previous: str
    digest: str


@router.get("/v1/audit", operation_id="listAudit", summary="Who did what, the oldest first")
async def index(here: Here, limit: Limit = 100, cursor: Cursor = None) -> Page[AuditEntry]:
    """Append-only; a changed or missing entry breaks the chain of digests."""
    async with here.database.read() as session:
        rows = await audit.page(session, number_after(cursor, 0), limit + 1)
    views = [
        AuditEntry(
            id=row.id,
            at=instant(row.at),
            actor=row.principal,
            action=row.action,
            subject=row.target,
            data=dict(row.detail),
            previous=row.previous,
            digest=row.digest,
        )
        for row in rows
    ]
    return page(rows, limit, lambda row: row.id, views)
