"""A session as operators and parties see it."""

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import NotFound
from coterie.protocol.session import PartyView, SessionView
from coterie.server.clock import now_ms
from coterie.server.coordinator import Coordinator
from coterie.server.paging import instant, maybe_instant
from coterie.server.store import mailbox, sessions
from coterie.server.store.mailbox import Load


async def session_view(coordinator: Coordinator, session: AsyncSession, identifier: str) -> SessionView:
    """A session as it stands. Raises NotFound ``session_unknown``."""
    row = await sessions.find(session, identifier)
    if row is None:
        raise NotFound(
            f"There is no session {identifier[:64]!r}.",
            hint="`coterie sessions list` shows them.",
            code="session_unknown",
        )
    # A session whose time is over is so before it is swept.
    is_expired = row.state == sessions.OPEN and row.expires_at <= now_ms()
    terms = sessions.terms_of(row)
    places = {place.role: place for place in await sessions.parties(session, identifier)}
    loads = await mailbox.load(session, identifier, now_ms())
    parties = [
        PartyView(
            role=role.name,
            party=role.party,
            id=places[role.name].party,
            public_key=places[role.name].public,
            joined_at=maybe_instant(places[role.name].joined_at),
            last_seen_at=maybe_instant(
                coordinator.presence.guests.last(places[role.name].party or "") or places[role.name].seen_at
            ),
            held_bytes=loads.get(role.name, Load(0, 0)).size,
        )
        for role in terms.roles
    ]
    return SessionView(
        id=row.id,
        name=row.name,
        terms=terms,
        state="open" if row.state == sessions.OPEN and not is_expired else "ended",
        reason=sessions.EXPIRED if is_expired else row.reason,
        detail=row.detail,
        parties=tuple(parties),
        messages=sum(load.messages for load in loads.values()),
        created_at=instant(row.created_at),
        expires_at=instant(row.expires_at),
        ended_at=maybe_instant(row.ended_at),
    )
