"""Two parties in a session over a coordinator in this process, whose answers a test may change on their way."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from server_kit import Operator, once

from coterie.client_sdk.party.party import PartyClient
from coterie.client_sdk.party.pins import Judge, trust_first_use
from coterie.client_sdk.party.session import SessionClient

ROLES = [{"name": "owner", "party": "Clinic"}, {"name": "feature", "party": "Registry"}]
Lie = Callable[[httpx.Request, httpx.Response], Awaitable[httpx.Response]]
"""Makes what the party is told out of what the coordinator answers."""


async def made(operator: Operator, **changes: Any) -> dict[str, Any]:
    """A session of two roles."""
    body = {"name": "joint", "roles": ROLES, "stages": ["rows", "sums"], **changes}
    return await operator.ok("POST", "/v1/sessions", json=body, headers=once())


class Liar(httpx.AsyncBaseTransport):
    """A coordinator that is not honest: the real one, whose answers to one party go through ``lie`` while it is set."""

    def __init__(self, real: httpx.AsyncBaseTransport) -> None:
        self._real = real
        self.lie: Lie | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """What the party is told."""
        answer = await self._real.handle_async_request(request)
        await answer.aread()
        return answer if self.lie is None else await self.lie(request, answer)


def transport_of(operator: Operator) -> httpx.AsyncBaseTransport:
    """Real transports are one per client; in process they share the application's."""
    return operator.http._transport  # pyright: ignore[reportPrivateUsage]


@asynccontextmanager
async def two(
    operator: Operator, folder: Path, **changes: Any
) -> AsyncGenerator[tuple[dict[str, Any], SessionClient, SessionClient], None]:
    """Two parties in a session, who trust each other's first key."""
    session = await made(operator, **changes)
    async with parties(operator, folder) as (one, other):
        url = str(operator.http.base_url)
        yield (
            session,
            await one.join(url, session["tokens"]["owner"]),
            await other.join(url, session["tokens"]["feature"]),
        )


@asynccontextmanager
async def parties(
    operator: Operator, folder: Path, *, liar: Liar | None = None, judge: Judge = trust_first_use
) -> AsyncGenerator[tuple[PartyClient, PartyClient], None]:
    """Two parties that have joined nothing yet. liar, judge: of the second."""
    real = transport_of(operator)
    one = PartyClient(folder / "a", judge=trust_first_use, transport=real)
    other = PartyClient(folder / "b", judge=judge, transport=liar or real)
    try:
        yield one, other
    finally:
        one.store.close()
        other.store.close()
