"""A party takes its role, sees its session, and may end it."""

from fastapi import Response

from coterie.errors import Conflict
from coterie.protocol import ids
from coterie.protocol.device import NONCE_HEADER
from coterie.protocol.session import PartyJoin, PartyJoined, SessionEnd, SessionView
from coterie.server.auth.gate import Joining, OpenCoordinator, PartySender, gated_router
from coterie.server.clock import now_ms
from coterie.server.sessions.standing import open_session
from coterie.server.sessions.view import session_view
from coterie.server.store import audit, events, nonces, sessions, tokens
from coterie.server.store.session_end import clear, end_session

router = gated_router("party")


@router.post("/v1/party/join", operation_id="joinSession", status_code=201, summary="Take a role in a session")
async def join(body: PartyJoin, response: Response, coordinator: OpenCoordinator, joining: Joining) -> PartyJoined:
    """Idempotent by public key: the same key gets the same party, and uses the token once."""
    async with coordinator.storage.database.write("party") as session:
        place = await sessions.by_token(session, joining.token)
        if place is None:
            raise Conflict("The role of this token no longer exists.", hint="Ask the operator.", code="role_unknown")
        row = await open_session(session, place.session)
        if place.public is not None and place.public != body.public_key:
            raise Conflict(
                f"The role {place.role} of session {row.id} was taken with another key.",
                hint="Join from the folder that holds that key; if somebody else has joined, end the session.",
                code="role_taken",
            )
        if place.party is None:
            await tokens.use(session, joining.token)
            party = ids.new_id(ids.PARTY)
            place.party, place.public = party, body.public_key
            place.joined_at = place.seen_at = now_ms()
            await audit.append(session, party, "session.joined", row.id, {"role": place.role})
            events.append(session, "session.joined", {"session": row.id, "role": place.role})
        else:
            party = place.party
            response.status_code = 200
        terms, role, name = sessions.terms_of(row), place.role, row.name
    nonce = coordinator.identity.nonces.issue(party)
    response.headers[NONCE_HEADER] = nonce
    return PartyJoined(party=party, role=role, name=name, terms=terms, nonce=nonce)


@router.get("/v1/party/session", operation_id="getOwnSession", summary="The party's session as it stands")
async def own(coordinator: OpenCoordinator, party: PartySender) -> SessionView:
    """Also of a session that has ended. What it says of partners' keys is the coordinator's word only."""
    async with coordinator.storage.database.read() as session:
        return await session_view(coordinator, session, party.session)


@router.post("/v1/party/end", operation_id="endOwnSession", summary="End the session for all its parties")
async def end(body: SessionEnd, coordinator: OpenCoordinator, party: PartySender) -> SessionView:
    """Idempotent. Messages that were not acknowledged are deleted."""
    async with coordinator.storage.database.write("session") as session:
        await nonces.spend(session, party.nonce, party.nonce_expires)
        await end_session(session, party.session, by=party.id, reason=party.role, detail=body.detail)
        view = await session_view(coordinator, session, party.session)
    await clear(party.session, coordinator.signals.messages, coordinator.storage.blobs.parts)
    return view
