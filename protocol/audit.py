"""The audit trail as a chain: each entry's digest covers the entry before, so what is changed, moved or left out shows.

A digest is SHA-256 over canonical JSON (RFC 8785) of everything else in the entry. Anybody who may read the trail can
check it (`first_fault`); a trail that was cut at its end shows by a digest that was noted earlier.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from coterie.protocol.canonical import GENESIS, digest_of
from coterie.protocol.wire import Response, Sha256, Title, Whole


class AuditEntry(Response):
    """Who did what to which thing, and when. ``digest`` covers the other fields; ``previous`` is the digest before."""

    id: Whole
    at: datetime
    actor: Title
    action: Title
    subject: Title | None = None
    data: dict[str, Any] = {}
    previous: Sha256
    digest: Sha256


def action_digest(
    *, id: int, at_ms: int, actor: str, action: str, subject: str | None, data: dict[str, Any], previous: str
) -> str:
    """The digest of an entry, hex.

    at_ms: milliseconds since 1970.
    """
    return digest_of(
        {
            "id": id,
            "at": at_ms,
            "actor": actor,
            "action": action,
            "subject": subject,
            "data": data,
            "previous": previous,
        }
    )


def first_fault(entries: Iterable[AuditEntry]) -> tuple[int, str] | None:
    """The first entry at which a whole trail does not hold, by its id, and why; None where it holds."""
    previous = GENESIS
    for place, entry in enumerate(entries, 1):
        if entry.id != place:
            return place, "entries are missing or moved"
        if entry.previous != previous:
            return place, "it does not follow the previous entry"
        said = action_digest(
            id=entry.id,
            at_ms=round(entry.at.timestamp() * 1000),
            actor=entry.actor,
            action=entry.action,
            subject=entry.subject,
            data=entry.data,
            previous=entry.previous,
        )
        if said != entry.digest:
            return place, "its digest does not match its content: it was changed"
        previous = entry.digest
    return None
