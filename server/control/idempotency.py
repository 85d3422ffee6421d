"""Idempotency-Key on creating requests: the same request again is not done again."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request, Response
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import InputError
from coterie.protocol.canonical import sha256_hex
from coterie.server.auth.gate import Calling
from coterie.server.clock import now_ms
from coterie.server.store.tables import IdempotencyRow

REPLAYED = "Idempotent-Replay"
IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200)]


@dataclass(frozen=True)
class Once:
    """One creating request: who sends it, under which key, and what it says."""

    principal: str
    key: str | None
    digest: str

    async def earlier(self, session: AsyncSession, response: Response) -> str | None:
        """What an earlier request under this key created, or None. Raises InputError when that request said something
        else.
        """
        if self.key is None:
            return None
        query = select(IdempotencyRow).where(IdempotencyRow.principal == self.principal, IdempotencyRow.key == self.key)
        row = (await session.execute(query)).scalar_one_or_none()
        if row is None:
            return None
        if row.request != self.digest:
            raise InputError(
                "This Idempotency-Key was used for another request.",
                hint="Use a fresh key for every new request.",
                code="idempotency_key_reused",
            )
        response.headers[REPLAYED] = "true"
        return row.resource

    def remember(self, session: AsyncSession, resource: str) -> None:
        """Note, in the transaction that creates it, what this request created. Kept for a day."""
        if self.key is not None:
            session.add(
                IdempotencyRow(
                    principal=self.principal, key=self.key, request=self.digest, resource=resource, created_at=now_ms()
                )
            )


async def once(request: Request, caller: Calling, key: IdempotencyKey = None) -> Once:
    """The request's idempotency."""
    body = await request.body()
    return Once(caller.token, key, sha256_hex(f"{request.method} {request.url.path}\n".encode() + body))


OnceOnly = Annotated[Once, Depends(once)]
