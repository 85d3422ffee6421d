"""The audit trail: one row per administrative action, in a chain (`coterie.protocol.audit`)."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import InternalError
from coterie.protocol.audit import action_digest
from coterie.server.clock import now_ms
from coterie.server.store import chains
from coterie.server.store.tables import AuditRow

CHAIN: Final = "audit"
"""The chain's name; its migration begins it."""


async def append(
    session: AsyncSession, principal: str, action: str, target: str, detail: Mapping[str, Any] | None = None
) -> None:
    """Record an action in the transaction that performs it.

    Raises errors.InternalError when other writers are faster time after time.
    """
    data = dict(detail or {})
    for _ in range(chains.MOST_TRIES):
        seen, at = await chains.end(session, CHAIN), now_ms()
        number = seen.sequence + 1
        digest = action_digest(
            id=number, at_ms=at, actor=principal, action=action, subject=target, data=data, previous=seen.digest
        )
        if await chains.move(session, CHAIN, seen, digest):
            session.add(
                AuditRow(
                    id=number, at=at, principal=principal, action=action, target=target,
                    detail=json.dumps(data, sort_keys=True), previous=seen.digest, digest=digest,
                )
            )  # fmt: skip
            return
    raise InternalError("Other writers kept changing the audit trail.")


async def page(session: AsyncSession, after: int, limit: int) -> Sequence[AuditRow]:
    """The entries after an id, oldest first."""
    query = select(AuditRow).where(AuditRow.id > after).order_by(AuditRow.id).limit(limit)
    return (await session.execute(query)).scalars().all()
