"""A message sealed into the outbox, whatever it comes from: constant memory, durable before its first byte leaves."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from coterie.client_sdk.party.store import Outgoing, PartyStore
from coterie.errors import TooLarge
from coterie.privacy.session import stream
from coterie.protocol.files import storage_error, sync_folder
from coterie.protocol.session import MessageHeader

Body: TypeAlias = bytes | Path | Iterable[bytes] | AsyncIterable[bytes]
PIECE: Final = 1 << 20
IN_ROW: Final = 1 << 16
"""Sealed bytes up to which a message is kept in its row of the outbox."""


async def pieces(body: Body) -> AsyncIterator[bytes]:
    """The bytes of a message, piece by piece. Raises StorageError for a file that cannot be read."""
    if isinstance(body, bytes):
        for first in range(0, len(body), PIECE):
            yield body[first : first + PIECE]
    elif isinstance(body, Path):
        try:
            with body.open("rb") as file:
                while piece := await asyncio.to_thread(file.read, PIECE):
                    yield piece
        except OSError as error:
            raise storage_error(body, error) from error
    elif isinstance(body, AsyncIterable):
        async for piece in body:
            yield piece
    else:
        for piece in body:
            yield piece


async def digest_of_body(body: Body) -> str:
    """SHA-256 of a message, hex."""
    digest = hashlib.sha256()
    async for piece in pieces(body):
        digest.update(piece)
    return digest.hexdigest()


async def seal(store: PartyStore, pair: bytes, header: MessageHeader, body: Body, step: str, limit: int) -> Outgoing:
    """Seal a message and put it into the outbox.

    step: of the stage, to which it belongs.
    limit: of its sealed bytes.

    Raises TooLarge ``message_too_large``, StorageError; then nothing of it is kept.
    """
    message = Outgoing(header.session, header.stage, header.recipient, header.sequence, "", "", 0, step=step)
    spool = store.spool(message)
    plain, sealed = hashlib.sha256(), hashlib.sha256()
    state, out = stream.begin(pair, header)
    held, size = bytearray(), 0
    try:
        with ExitStack() as files:
            file: BinaryIO | None = None

            def keep(data: bytes) -> None:
                nonlocal size, file
                size += len(data)
                if size > limit:
                    raise TooLarge(
                        f"The message exceeds the {limit} sealed bytes that session {header.session} allows.",
                        hint="Send it in several messages, or ask the operator for a session with a higher "
                        "message_limit.",
                        code="message_too_large",
                    )
                sealed.update(data)
                if size <= IN_ROW:
                    held.extend(data)
                    return
                if file is None:
                    file = files.enter_context(spool.open("wb"))
                    file.write(held)
                file.write(data)

            keep(out)
            async for piece in pieces(body):
                plain.update(piece)
                state, out = stream.feed(state, piece)
                if len(out) > IN_ROW:
                    await asyncio.to_thread(keep, out)
                elif out:
                    keep(out)
            keep(stream.finish(state))
            if file is not None:
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
                sync_folder(spool.parent)
    except OSError as error:
        spool.unlink(missing_ok=True)
        raise storage_error(spool, error) from error
    except BaseException:
        spool.unlink(missing_ok=True)
        raise
    body_in_row = bytes(held) if size <= IN_ROW else None
    message = replace(message, plain=plain.hexdigest(), sealed=sealed.hexdigest(), size=size, body=body_in_row)
    store.put(message)
    return message
