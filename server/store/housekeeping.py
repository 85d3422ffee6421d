"""First start, and tidying up: at start, and now and then."""

import os
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from coterie.errors import Unauthenticated
from coterie.protocol.files import create_durably
from coterie.protocol.signing import SigningKey
from coterie.server.auth.tokens import Token, new_token, parse_token
from coterie.server.clock import now_ms
from coterie.server.store import attempts, audit, blob_rows, devices, nonces, tasks, tokens, upstream
from coterie.server.store.blobs import BlobStore
from coterie.server.store.engine import Database
from coterie.server.store.tables import IdempotencyRow, SecretRow, TokenRow

ADMIN_TOKEN_FILE = "admin.token"
KEY = "coordinator_key"
DAY_MS = 24 * 3600 * 1000


async def first_start(database: Database, folder: Path) -> tuple[SigningKey, Token | None]:
    """The coordinator's signing key, and the admin token if this start made it; both are made once, in one
    transaction.
    """
    async with database.read() as session:
        key = await session.get(SecretRow, KEY)
        admins = (
            await session.execute(select(func.count()).select_from(TokenRow).where(TokenRow.kind == "admin"))
        ).scalar_one()
    if key is not None and admins:
        return SigningKey.from_seed(key.value), None
    seed = key.value if key else os.urandom(32)
    # The file comes first: a row whose token nobody can read would lock the operator out.
    token = _token_file(folder / ADMIN_TOKEN_FILE)
    async with database.write("first_start") as session:
        if key is None:
            session.add(SecretRow(name=KEY, value=seed))
        tokens.add(session, token, label="made on first start", population=None, max_uses=None, expires_at=None)
        await audit.append(session, "coordinator", "token.created", token.id, {"kind": "admin"})
    return SigningKey.from_seed(seed), token


def _token_file(path: Path) -> Token:
    """The token in the file, which a crash on first start may have left; else a new one, written there with mode
    0600.
    """
    token = new_token("admin")
    if create_durably(path, f"{token.text}\n".encode(), mode=0o600):
        return token
    try:
        return parse_token(path.read_text("ascii").strip())
    except (Unauthenticated, UnicodeDecodeError):
        path.unlink()
        return _token_file(path)


async def tidy(database: Database, seen: Mapping[str, int]) -> None:
    """Forget expired nonces and old idempotency keys; write down when devices were last seen."""
    now = now_ms()
    async with database.write("sweep") as session:
        await nonces.forget_expired(session, now)
        await session.execute(delete(IdempotencyRow).where(IdempotencyRow.created_at < now - DAY_MS))
        await devices.saw(session, seen)


async def sweep_orphans(session: AsyncSession, blobs: BlobStore) -> int:
    """Delete blobs that no row mentions: what a crash between sync and commit left. Only at start, before any request.
    Returns how many.
    """
    known = await blob_rows.all_digests(session)
    live = await tasks.live_uploads(session) | await upstream.live_accumulators(session)
    live |= await attempts.live_uploads(session)
    blob_orphans = [digest for digest in await blobs.names("blobs") if digest not in known]
    update_orphans = [digest for digest in await blobs.names("updates") if digest not in live]
    for digest in blob_orphans:
        await blobs.remove("blobs", digest)
    for digest in update_orphans:
        await blobs.remove("updates", digest)
    blobs.clear_scratch(await tasks.leased(session) | await attempts.uploading(session))
    return len(blob_orphans) + len(update_orphans)
