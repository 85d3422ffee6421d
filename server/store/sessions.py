"""Sessions of parties as rows."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from sqlalchemy import CursorResult, Table, bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.protocol.session import SessionTerms
from coterie.server.store.engine import Database
from coterie.server.store.tables import PartyRow, SessionRow, TokenRow

OPEN: Final = "open"
ENDED: Final = "ended"
EXPIRED: Final = "expired"
"""The reason of a session that ended because its time was over."""
_SESSIONS: Final = cast("Table", SessionRow.__table__)
_FIND: Final = select(SessionRow).where(SessionRow.id == bindparam("session")).execution_options(populate_existing=True)
_PARTIES: Final = select(PartyRow).where(PartyRow.session == bindparam("session")).order_by(PartyRow.role)


class SessionStanding(NamedTuple):
    """How a session stands, as a message needs it: plain columns, since every message asks."""

    id: str
    name: str
    terms: str
    state: str
    reason: str | None
    detail: str | None
    expires_at: int
    message_ttl_ms: int
    party_quota: int
    session_quota: int


_STANDING: Final = select(*(_SESSIONS.c[name] for name in SessionStanding._fields)).where(
    _SESSIONS.c.id == bindparam("session")
)


def terms_of(row: SessionRow | SessionStanding) -> SessionTerms:
    """What the parties of a session must agree on."""
    return SessionTerms.model_validate_json(row.terms)


async def find(session: AsyncSession, identifier: str) -> SessionRow | None:
    """The session of this id, as this transaction sees it now."""
    return (await session.execute(_FIND, {"session": identifier})).scalar_one_or_none()


async def standing(session: AsyncSession, identifier: str) -> SessionStanding | None:
    """How the session of this id stands, as this transaction sees it now."""
    row = (await session.execute(_STANDING, {"session": identifier})).one_or_none()
    return None if row is None else SessionStanding(*row)


async def parties(session: AsyncSession, identifier: str) -> Sequence[PartyRow]:
    """The roles of a session, by name."""
    return (await session.execute(_PARTIES, {"session": identifier})).scalars().all()


async def by_token(session: AsyncSession, token: str) -> PartyRow | None:
    """The role that is joined with a token."""
    return (await session.execute(select(PartyRow).where(PartyRow.token == token))).scalar_one_or_none()


async def page(session: AsyncSession, after: str, limit: int) -> Sequence[SessionRow]:
    """Sessions by rising id, which is the order in which they were made."""
    query = select(SessionRow).where(SessionRow.id > after).order_by(SessionRow.id).limit(limit)
    return (await session.execute(query)).scalars().all()


async def end(session: AsyncSession, identifier: str, reason: str, detail: str, now: int) -> bool:
    """End a session and revoke its tokens. False where it had ended before."""
    still = SessionRow.id == identifier, SessionRow.state == OPEN
    values = {"state": ENDED, "reason": reason, "detail": detail, "ended_at": now}
    done = await session.execute(update(SessionRow).where(*still).values(values))
    if cast("CursorResult[Any]", done).rowcount != 1:
        return False
    tokens = select(PartyRow.token).where(PartyRow.session == identifier)
    revoked = TokenRow.id.in_(tokens), TokenRow.revoked_at.is_(None)
    await session.execute(update(TokenRow).where(*revoked).values(revoked_at=now))
    return True


async def overdue(session: AsyncSession, now: int) -> Sequence[str]:
    """Open sessions whose time is over."""
    query = select(SessionRow.id).where(SessionRow.state == OPEN, SessionRow.expires_at <= now)
    return (await session.execute(query)).scalars().all()


async def saw(session: AsyncSession, seen: Mapping[str, int]) -> None:
    """Write down when parties were last seen."""
    for identifier, at in seen.items():
        await session.execute(update(PartyRow).where(PartyRow.party == identifier).values(seen_at=at))


class KnownParty(NamedTuple):
    """What authentication needs of a party."""

    session: str
    role: str
    public: str
    terms: SessionTerms


class PartyCache:
    """Remembers parties by id, up to a bound. Nothing that it remembers changes once a party has joined; whether its
    session is open is for each request to look.
    """

    def __init__(self, database: Database, bound: int = 10_000) -> None:
        self._database = database
        self._bound = bound
        self._known: dict[str, KnownParty] = {}

    async def find(self, identifier: str) -> KnownParty | None:
        """The party of this id, or None."""
        known = self._known.get(identifier)
        if known is None:
            async with self._database.read() as session:
                query = select(PartyRow, SessionRow).join(SessionRow, SessionRow.id == PartyRow.session)
                rows = (await session.execute(query.where(PartyRow.party == identifier))).one_or_none()
            if rows is None or rows[0].public is None:
                return None
            if len(self._known) >= self._bound:
                self._known.pop(next(iter(self._known)))
            known = self._known[identifier] = KnownParty(rows[1].id, rows[0].role, rows[0].public, terms_of(rows[1]))
        return known
