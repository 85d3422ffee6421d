"""First start, and tidying up now and then."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import delete, func, select

from coterie.errors import Unauthenticated
from coterie.protocol.files import create_durably
from coterie.protocol.signing import SigningKey
from coterie.server.clock import now_ms
from coterie.server.credentials.tokens import Token, new_token, parse_token
from coterie.server.store import (
    attempts,
    audit,
    blob_rows,
    devices,
    jobs,
    mailbox,
    nonces,
    sessions,
    tasks,
    tokens,
    upstream,
)
from coterie.server.store.blobs import BlobStore
from coterie.server.store.engine import Database
from coterie.server.store.objects import Shelf
from coterie.server.store.parts_in_use import parts_in_use
from coterie.server.store.tables import IdempotencyRow, SecretRow, TokenRow

ADMIN_TOKEN_FILE = "admin.token"
KEY = "coordinator_key"
NONCE_KEY = "nonce_key"
ORPHAN_AGE_S = 3600.0
SHELVES: Final[tuple[Shelf, ...]] = ("blobs", "updates")
DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True)
class Secrets:
    """What the coordinator keeps for itself.

    key: its signing key.
    nonces: the key that seals nonces.
    token: the admin token, if this start made it.
    """

    key: SigningKey
    nonces: bytes
    token: Token | None


async def first_start(database: Database, folder: Path) -> Secrets:
    """The coordinator's secrets. Those that are missing are made, in one transaction."""
    async with database.read() as session:
        rows = {name: await session.get(SecretRow, name) for name in (KEY, NONCE_KEY)}
        admins = (
            await session.execute(select(func.count()).select_from(TokenRow).where(TokenRow.kind == "admin"))
        ).scalar_one()
    values = {name: os.urandom(32) if row is None else row.value for name, row in rows.items()}
    token = None
    if not admins or None in rows.values():
        # The file comes first: a row whose token nobody can read would lock the operator out.
        token = None if admins else _token_file(folder / ADMIN_TOKEN_FILE)
        async with database.write("first_start") as session:
            session.add_all(SecretRow(name=name, value=values[name]) for name, row in rows.items() if row is None)
            if token is not None:
                tokens.add(session, token, label="made on first start", population=None, max_uses=None, expires_at=None)
                await audit.append(session, "coordinator", "token.created", token.id, {"kind": "admin"})
    return Secrets(SigningKey.from_seed(values[KEY]), values[NONCE_KEY], token)


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


async def tidy(database: Database, devices_seen: Mapping[str, int], parties_seen: Mapping[str, int]) -> None:
    """Forget expired nonces, messages and old idempotency keys; write down when devices and parties were last seen."""
    now = now_ms()
    async with database.write("sweep") as session:
        await nonces.forget_expired(session, now)
        await session.execute(delete(IdempotencyRow).where(IdempotencyRow.created_at < now - DAY_MS))
        await mailbox.expire(session, now)
        await devices.saw(session, devices_seen)
        await sessions.saw(session, parties_seen)


async def sweep_orphans(database: Database, blobs: BlobStore, age_s: float = ORPHAN_AGE_S) -> int:
    """Delete blobs that no row mentions, and parts of uploads that will not go on: what crashes have left.

    age_s: how old an orphan must be, in seconds; a younger one may be a blob whose row another process is about to
    write. Returns how many there were.
    """
    # Rows are read after the store: whatever has a row by then is spared.
    old: dict[Shelf, list[str]] = {
        shelf: [each.digest for each in await blobs.stored(shelf) if each.age_s > age_s] for shelf in SHELVES
    }
    begun = await blobs.parts.tasks()
    async with database.read() as session:
        in_use = await parts_in_use(session)
        live = await tasks.live_uploads(session) | await upstream.live_accumulators(session)
        mentioned = {
            "blobs": await blob_rows.all_digests(session),
            "updates": live | await attempts.live_uploads(session) | await jobs.live_digests(session),
        }
    removed = 0
    for shelf, digests in old.items():
        for digest in digests:
            if digest not in mentioned[shelf]:
                removed += await blobs.delete_older(shelf, digest, age_s)
    for task in begun - in_use:
        await blobs.parts.drop(task)
    await blobs.drop_unfinished(age_s)
    blobs.forget_written(age_s)
    return removed
