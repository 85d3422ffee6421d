"""What every request of a party is held to: an open session, a stage that it declared, a role that is there."""

from typing import Literal

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import Gone, NotFound
from coterie.protocol.session import KEYS_STAGE
from coterie.server.auth.gate import SignedParty
from coterie.server.clock import now_ms
from coterie.server.store import sessions
from coterie.server.store.mailbox import Box
from coterie.server.store.sessions import SessionStanding


async def open_session(session: AsyncSession, identifier: str) -> SessionStanding:
    """The open session. Raises NotFound ``session_unknown``, Gone (``session_ended``, ``session_expired``)."""
    row = await sessions.standing(session, identifier)
    if row is None:
        raise NotFound(f"There is no session {identifier}.", code="session_unknown")
    if row.reason == sessions.EXPIRED or (row.state == sessions.OPEN and row.expires_at <= now_ms()):
        raise Gone(
            f"Session {row.id} ({row.name}) has expired.",
            hint="Ask the operator for a new session, made with a longer expires_s.",
            code="session_expired",
        )
    if row.state != sessions.OPEN:
        why = f"by {row.reason}" + (f": {row.detail}" if row.detail else "")
        raise Gone(
            f"Session {row.id} ({row.name}) was ended {why}.",
            hint="Ask the operator for a new session.",
            code="session_ended",
        )
    return row


def box(party: SignedParty, stage: str, role: str, direction: Literal["to", "from"]) -> Box:
    """The box between a party and its partner in a role. Raises NotFound ``stage_unknown``, ``role_unknown``."""
    terms = party.terms
    if stage not in (*terms.stages, KEYS_STAGE):
        raise NotFound(
            f"Session {terms.session} has no stage {stage!r}.",
            hint=f"Its stages are {', '.join(terms.stages)}.",
            code="stage_unknown",
        )
    others = [each.name for each in terms.roles if each.name != party.role]
    if role not in others:
        what = "is the sender's own role" if role == party.role else "is not one of its roles"
        raise NotFound(
            f"Session {terms.session}: {role!r} {what}.",
            hint=f"The partners of {party.role} are {', '.join(others)}.",
            code="role_unknown",
        )
    ends = (party.role, role) if direction == "to" else (role, party.role)
    return Box(terms.session, stage, *ends)
