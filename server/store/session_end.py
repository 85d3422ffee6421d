"""A session ends: nothing is taken any more, tokens are revoked, what waits in its mailbox is deleted."""

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.server.clock import now_ms
from coterie.server.store import audit, events, mailbox, sessions
from coterie.server.store.parts import UploadParts
from coterie.server.turns import PhaseTurns


async def end_session(session: AsyncSession, identifier: str, *, by: str, reason: str, detail: str = "") -> bool:
    """End a session in this transaction. False where it had ended before.

    by: who does it, for the audit.
    reason: ``ended``, ``expired`` or a party's role.
    """
    if not await sessions.end(session, identifier, reason, detail, now_ms()):
        return False
    await mailbox.empty(session, identifier)
    await audit.append(session, by, "session.ended", identifier, {"reason": reason})
    events.append(session, "session.ended", {"session": identifier, "reason": reason})
    return True


async def end_overdue(session: AsyncSession) -> tuple[str, ...]:
    """End the sessions whose time is over. Returns their ids."""
    overdue = await sessions.overdue(session, now_ms())
    for identifier in overdue:
        await end_session(session, identifier, by="coordinator", reason=sessions.EXPIRED)
    return tuple(overdue)


async def clear(identifier: str, turns: PhaseTurns, parts: UploadParts) -> None:
    """After a session's end is committed: tell whoever waits for its messages, and delete their bytes."""
    for turn in turns.waited_for():
        if turn.startswith(f"{identifier}/"):
            turns.turned(turn)
    for name in await parts.tasks():
        if name.startswith(f"{identifier}-"):
            await parts.drop(name)
