"""Which uploads may still go on, of all that the store has parts of. Everything that deletes parts asks here."""

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.server.clock import now_ms
from coterie.server.store import attempts, mailbox, tasks


async def parts_in_use(session: AsyncSession) -> frozenset[str]:
    """The names of their parts: of updates whose tasks are out, of masked vectors that attempts wait for, and of
    messages between parties that are coming in or wait to be fetched.
    """
    updates, vectors = await tasks.leased(session), await attempts.uploading(session)
    return updates | vectors | await mailbox.live_parts(session, now_ms())
