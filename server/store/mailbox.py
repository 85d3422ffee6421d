"""The mailbox as rows: one per sender and phase of a session, holding what its sender has for everybody in one bundle.

A thousand clients with 48 neighbours each are a thousand rows a phase, not 48 thousand; a recipient's part is picked
out of the bundles of those who wrote to it. What is here is deleted with its session.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import bindparam, delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import TooLarge
from coterie.server.clock import now_ms
from coterie.server.store.tables import MailboxRow

BUNDLE_LIMIT: Final = 1 << 20
"""The most bytes that one sender may leave in one phase."""
BATCH = 500
_COUNT: Final = (
    select(func.count())
    .select_from(MailboxRow)
    .where(MailboxRow.session == bindparam("box"), MailboxRow.phase == bindparam("phase"))
)


async def find(session: AsyncSession, box: str, phase: str, sender: str) -> str | None:
    """What a sender left in this phase; None when nothing."""
    row = await session.get(MailboxRow, (box, phase, sender))
    return None if row is None else row.bundle


async def put(session: AsyncSession, box: str, phase: str, sender: str, bundle: str) -> None:
    """Leave a bundle. The caller has looked, in this transaction, that the sender left none in this phase.

    Raises TooLarge for more than BUNDLE_LIMIT bytes.
    """
    size = len(bundle.encode())
    if size > BUNDLE_LIMIT:
        raise TooLarge(
            f"A message of {size} bytes exceeds the {BUNDLE_LIMIT} bytes that one sender may leave in one phase.",
            hint="Send less.",
            limit=BUNDLE_LIMIT,
        )
    session.add(MailboxRow(session=box, phase=phase, sender=sender, bundle=bundle, size=size, created_at=now_ms()))
    await session.flush()


async def bundles(
    session: AsyncSession, box: str, phase: str, senders: Sequence[str] | None = None
) -> Mapping[str, str]:
    """What was left in a phase, by sender, in the order of their names; of these senders only, where some are given."""
    query = select(MailboxRow.sender, MailboxRow.bundle).where(MailboxRow.session == box, MailboxRow.phase == phase)
    if senders is None:
        return {row.sender: row.bundle for row in await session.execute(query.order_by(MailboxRow.sender))}
    found: dict[str, str] = {}
    for first in range(0, len(senders), BATCH):  # SQLite bounds the parameters of one statement
        batch = query.where(MailboxRow.sender.in_(senders[first : first + BATCH]))
        found |= {row.sender: row.bundle for row in await session.execute(batch)}
    return dict(sorted(found.items()))


async def senders(session: AsyncSession, box: str, phase: str) -> Sequence[str]:
    """Who has left something in a phase, in the order of their names."""
    query = select(MailboxRow.sender).where(MailboxRow.session == box, MailboxRow.phase == phase)
    return (await session.execute(query.order_by(MailboxRow.sender))).scalars().all()


async def count(session: AsyncSession, box: str, phase: str) -> int:
    """How many have left something in a phase."""
    return int((await session.execute(_COUNT, {"box": box, "phase": phase})).scalar_one())


async def empty(session: AsyncSession, box: str) -> None:
    """Delete everything of a session that is over."""
    await session.execute(delete(MailboxRow).where(MailboxRow.session == box))
