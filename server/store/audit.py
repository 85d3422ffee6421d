"""The audit trail: one row per administrative action, each row's digest covering the row before."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.protocol.canonical import canonical_json, sha256_hex
from coterie.server.clock import now_ms
from coterie.server.store.tables import AuditRow

GENESIS = "0" * 64


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """One action: who did what to what. ``digest`` covers all the other fields."""

    id: int
    at: int
    principal: str
    action: str
    target: str
    detail: Mapping[str, Any]
    previous: str
    digest: str


def _digest(*, at: int, principal: str, action: str, target: str, detail: str, previous: str) -> str:
    entry = {
        "at": at,
        "principal": principal,
        "action": action,
        "target": target,
        "detail": detail,
        "previous": previous,
    }
    return sha256_hex(canonical_json(entry))


async def append(
    session: AsyncSession, principal: str, action: str, target: str, detail: Mapping[str, Any] | None = None
) -> None:
    """Record an action in the transaction that performs it."""
    last = (await session.execute(select(AuditRow.digest).order_by(AuditRow.id.desc()).limit(1))).scalar()
    at, previous, text = now_ms(), last or GENESIS, json.dumps(dict(detail or {}), sort_keys=True)
    digest = _digest(at=at, principal=principal, action=action, target=target, detail=text, previous=previous)
    session.add(
        AuditRow(
            at=at, principal=principal, action=action, target=target, detail=text, previous=previous, digest=digest
        )
    )


async def page(session: AsyncSession, after: int, limit: int) -> list[AuditEntry]:
    """The entries after an id, oldest first."""
    rows = (
        await session.execute(select(AuditRow).where(AuditRow.id > after).order_by(AuditRow.id).limit(limit))
    ).scalars()
    return [
        AuditEntry(
            id=row.id, at=row.at, principal=row.principal, action=row.action, target=row.target,
            detail=json.loads(row.detail), previous=row.previous, digest=row.digest,
        )
        for row in rows
    ]  # fmt: skip


async def first_broken(session: AsyncSession) -> int | None:
    """The id of the first entry whose digest does not follow from the one before, or None when the chain holds."""
    previous = GENESIS
    for row in (await session.execute(select(AuditRow).order_by(AuditRow.id))).scalars():
        digest = _digest(
            at=row.at,
            principal=row.principal,
            action=row.action,
            target=row.target,
            detail=row.detail,
            previous=previous,
        )
        if row.previous != previous or row.digest != digest:
            return row.id
        previous = row.digest
    return None
