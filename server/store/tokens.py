"""Tokens as rows. The secret itself is never here."""

from collections.abc import Sequence
from typing import Any, Final, cast

from sqlalchemy import CursorResult, bindparam, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.server.clock import now_ms
from coterie.server.credentials.tokens import Token
from coterie.server.store.tables import TokenRow

# Plain columns, built once: a stream of events asks after every change.
_VALID: Final = select(TokenRow.id).where(
    TokenRow.id == bindparam("token"),
    TokenRow.revoked_at.is_(None),
    or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > bindparam("now")),
)


async def find(session: AsyncSession, identifier: str) -> TokenRow | None:
    """The token of this id."""
    return await session.get(TokenRow, identifier)


def add(
    session: AsyncSession,
    token: Token,
    *,
    label: str,
    population: str | None,
    max_uses: int | None,
    expires_at: int | None,
    min_clients: int | None = None,
    max_clients: int | None = None,
) -> TokenRow:
    """Keep a new token."""
    row = TokenRow(
        id=token.id, kind=token.kind, digest=token.digest, label=label, population=population,
        uses=0, max_uses=max_uses, expires_at=expires_at, created_at=now_ms(),
        min_clients=min_clients, max_clients=max_clients,
    )  # fmt: skip
    session.add(row)
    return row


async def replace_secret(session: AsyncSession, token: Token) -> None:
    """Give an existing token another secret; the former one stops working."""
    await session.execute(update(TokenRow).where(TokenRow.id == token.id).values(digest=token.digest))


async def valid(session: AsyncSession, identifier: str) -> bool:
    """Whether a token is neither revoked nor expired."""
    found = await session.execute(_VALID, {"token": identifier, "now": now_ms()})
    return found.scalar_one_or_none() is not None


async def use(session: AsyncSession, identifier: str) -> bool:
    """Count one use. False when the token has no use left, has expired or was revoked; then nothing changed."""
    result = await session.execute(
        update(TokenRow)
        .where(
            TokenRow.id == identifier,
            TokenRow.revoked_at.is_(None),
            or_(TokenRow.max_uses.is_(None), TokenRow.uses < TokenRow.max_uses),
            or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > now_ms()),
        )
        .values(uses=TokenRow.uses + 1)
    )
    return cast("CursorResult[Any]", result).rowcount == 1


async def revoke(session: AsyncSession, identifier: str) -> None:
    """Make a token useless for ever."""
    await session.execute(
        update(TokenRow).where(TokenRow.id == identifier, TokenRow.revoked_at.is_(None)).values(revoked_at=now_ms())
    )


async def page(session: AsyncSession, population: str | None, after: str, limit: int) -> Sequence[TokenRow]:
    """Tokens by rising id, those for one population or all."""
    query = select(TokenRow).where(TokenRow.id > after).order_by(TokenRow.id).limit(limit)
    if population is not None:
        query = query.where(TokenRow.population == population)
    return (await session.execute(query)).scalars().all()
