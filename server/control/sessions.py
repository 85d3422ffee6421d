"""Sessions of parties, as an operator makes, sees and ends them."""

from typing import Annotated

from fastapi import Path, Response
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import NotFound
from coterie.protocol import ids
from coterie.protocol.control import Page
from coterie.protocol.session import SessionCreate, SessionCreated, SessionEnd, SessionTerms, SessionView
from coterie.server.auth.gate import Calling, OpenCoordinator, gated_router
from coterie.server.clock import now_ms
from coterie.server.control.idempotency import OnceOnly
from coterie.server.credentials.tokens import Token, new_token
from coterie.server.paging import PageCursor, PageLimit, after, page
from coterie.server.sessions.view import session_view
from coterie.server.store import audit, events, sessions, tokens
from coterie.server.store.session_end import clear, end_session
from coterie.server.store.tables import PartyRow, SessionRow

router = gated_router("sessions")
SessionName = Annotated[str, Path(max_length=64)]


@router.post("/v1/sessions", operation_id="createSession", status_code=201, summary="Make a session of parties")
async def create(
    body: SessionCreate, response: Response, coordinator: OpenCoordinator, caller: Calling, once: OnceOnly
) -> SessionCreated:
    """The only answer that holds the tokens with which parties join. The same Idempotency-Key again gives the roles
    that are still free new tokens; the former stop working.
    """
    async with coordinator.storage.database.write("session") as session:
        await caller.confirm(session)
        earlier = await once.earlier(session, response)
        if earlier is not None:
            secrets = await _again(session, earlier)
            identifier = earlier
        else:
            identifier = ids.new_id(ids.SESSION)
            secrets = await _make_session(session, identifier, body)
            detail = {"roles": [role.name for role in body.roles], "parties": [role.party for role in body.roles]}
            await audit.append(session, caller.token, "session.created", identifier, detail)
            events.append(session, "session.created", {"session": identifier, "name": body.name})
            once.remember(session, identifier)
        await session.flush()
        view = await session_view(coordinator, session, identifier)
    return SessionCreated.model_validate(
        {**view.model_dump(), "tokens": {role: token.text for role, token in secrets.items()}}
    )


async def _make_session(session: AsyncSession, identifier: str, body: SessionCreate) -> dict[str, Token]:
    now = now_ms()
    terms = SessionTerms(
        session=identifier,
        roles=body.roles,
        stages=body.all_stages,
        message_limit=body.message_limit,
        job=body.job,
    )
    row = SessionRow(
        id=identifier,
        name=body.name,
        terms=terms.model_dump_json(),
        party_quota=body.party_quota,
        session_quota=body.session_quota,
        message_ttl_ms=body.message_ttl_s * 1000,
        state=sessions.OPEN,
        created_at=now,
        expires_at=now + body.expires_s * 1000,
    )
    session.add(row)
    secrets = {role.name: new_token("party") for role in body.roles}
    for role, token in secrets.items():
        label = f"role {role} of {body.name}"
        tokens.add(session, token, label=label, population=None, max_uses=1, expires_at=row.expires_at)
    await session.flush()
    session.add_all(PartyRow(session=identifier, role=role, token=token.id) for role, token in secrets.items())
    return secrets


async def _again(session: AsyncSession, identifier: str) -> dict[str, Token]:
    """New secrets for the roles that nobody has taken."""
    secrets: dict[str, Token] = {}
    for place in await sessions.parties(session, identifier):
        if place.party is None:
            secrets[place.role] = new_token("party", place.token)
            await tokens.replace_secret(session, secrets[place.role])
    return secrets


@router.get("/v1/sessions", operation_id="listSessions", summary="List sessions")
async def index(coordinator: OpenCoordinator, limit: PageLimit = 100, cursor: PageCursor = None) -> Page[SessionView]:
    """In the order in which they were made."""
    async with coordinator.storage.database.read() as session:
        rows = await sessions.page(session, after(cursor) or "", limit + 1)
        views = [await session_view(coordinator, session, row.id) for row in rows[:limit]]
    return page(rows, limit, lambda row: row.id, views)


@router.get("/v1/sessions/{session}", operation_id="getSession", summary="One session")
async def show(session: SessionName, coordinator: OpenCoordinator) -> SessionView:
    """As it stands."""
    async with coordinator.storage.database.read() as rows:
        return await session_view(coordinator, rows, session)


@router.post("/v1/sessions/{session}/end", operation_id="endSession", summary="End a session for all its parties")
async def end(session: SessionName, body: SessionEnd, coordinator: OpenCoordinator, caller: Calling) -> SessionView:
    """Idempotent. Messages that were not acknowledged are deleted, and tokens of free roles revoked."""
    async with coordinator.storage.database.write("session") as rows:
        await caller.confirm(rows)
        if await sessions.find(rows, session) is None:
            raise NotFound(
                f"There is no session {session!r}.", hint="`coterie sessions list` shows them.", code="session_unknown"
            )
        await end_session(rows, session, by=caller.token, reason="ended", detail=body.detail)
        view = await session_view(coordinator, rows, session)
    await clear(session, coordinator.signals.messages, coordinator.storage.blobs.parts)
    return view
