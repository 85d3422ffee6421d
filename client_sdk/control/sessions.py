"""Sessions of parties, as an operator makes, sees and ends them."""

from urllib.parse import quote

from coterie.client_sdk.control.client import ControlClient
from coterie.protocol.session import SessionCreate, SessionCreated, SessionEnd, SessionView
from coterie.protocol.wire import read_message


async def make(client: ControlClient, request: SessionCreate) -> SessionCreated:
    """A new session; its field ``tokens`` is shown this once. Raises RemoteError (``token_role``, ``token_scope``)."""
    return read_message(SessionCreated, await client.create("/v1/sessions", request))


async def list_all(client: ControlClient) -> list[SessionView]:
    """Every session, the oldest first."""
    return await client.items(SessionView, "/v1/sessions")


async def get(client: ControlClient, session: str) -> SessionView:
    """One session, by its id. Raises RemoteError (``session_unknown``)."""
    return read_message(SessionView, await client.link.json("GET", f"/v1/sessions/{quote(session, safe='')}"))


async def end(client: ControlClient, session: str, detail: str = "") -> SessionView:
    """End a session for all its parties. Idempotent.

    detail: why, for people.
    Raises RemoteError (``session_unknown``).
    """
    address = f"/v1/sessions/{quote(session, safe='')}/end"
    body = SessionEnd(detail=detail).model_dump(mode="json")
    return read_message(SessionView, await client.link.json("POST", address, body))
