"""Blobs: immutable bytes named by their SHA-256 digest, in an object store.

A name is visible only when its bytes are complete and are those that it is named for. `BlobStore.put` hashes a stream
while it passes into the store; what must be looked into before it is kept comes in with `receive`, which hashes it
while it arrives, and is kept as it is. Both ways return after the file *and* every folder that names it are synced;
only then may a row mention the digest. Update files live under ``updates/``, away from everything that is ever served.
"""

import asyncio
import errno
import hashlib
import math
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import obstore

from coterie.errors import InputError, StorageError, TooLarge
from coterie.protocol.private_files import make_private_folder
from coterie.server.faults import CoordinatorFaults
from coterie.server.store.blob_reader import CHUNK, BlobReader
from coterie.server.store.objects import Objects, Shelf, key_of
from coterie.server.store.parts import UploadParts
from coterie.server.store.received import Received

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def storage_full(error: BaseException) -> StorageError | None:
    """The refusal to answer with when an error, or what caused it, means that no space is left; None for any other."""
    seen: BaseException | None = error
    while seen is not None:
        # obstore reports the system's error only in its text.
        full = isinstance(seen, OSError) and seen.errno in FULL
        if full or any(f"os error {number}" in str(seen) for number in FULL):
            return no_space()
        seen = seen.__cause__ or seen.__context__
    return None


def no_space() -> StorageError:
    """The refusal for want of space."""
    return StorageError(
        "The coordinator has no space left; nothing of this request was kept.",
        hint="Send it again later; the operator must free space.",
        code="storage_full",
    )


def too_large(limit: int) -> TooLarge:
    """The refusal of a body that is larger than allowed."""
    return TooLarge(f"The body is larger than the {limit} bytes allowed here.", hint="Send less.", limit=limit)


@dataclass(frozen=True)
class Stored:
    """A blob as its store lists it.

    age_s: seconds since it was written.
    """

    digest: str
    age_s: float


class BlobStore:
    """The blobs of one coordinator.

    reader: of the same blobs, for code that blocks. parts: of uploads that go on later.
    """

    def __init__(self, objects: Objects, local: Path, faults: CoordinatorFaults) -> None:
        """A store of objects.

        local: a folder of this machine for bytes that are promised to nobody: bodies that are coming in, the results of
            jobs, caches.
        """
        self.local = local
        self.scratch = local / "scratch"
        self.reader = BlobReader(objects, self.scratch)
        self.parts = UploadParts(objects)
        self._objects = objects
        self._faults = faults
        self._written: dict[str, float] = {}
        self._removing = asyncio.Lock()
        for part in (local, self.scratch, *(() if objects.folder is None else (objects.folder,))):
            make_private_folder(part)

    def where(self, shelf: Shelf, digest: str) -> str:
        """Where a blob is, for messages."""
        return self._objects.where(key_of(shelf, digest))

    def scratch_file(self, name: str) -> Path:
        """A place for bytes that are promised to nobody yet; emptied at start."""
        return self.scratch / name

    def clear_scratch(self) -> None:
        """Drop what an earlier process of this machine left in scratch."""
        for path in self.scratch.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    async def put(
        self,
        shelf: Shelf,
        digest: str,
        stream: AsyncIterable[bytes],
        *,
        point: str,
        size: int | None = None,
        limit: int | None = None,
    ) -> int:
        """Let a stream pass into the store, hashed once while it does, and make it durable. Repeating it is harmless.

        size: in bytes, where it is known.
        limit: the most bytes there may be.
        Returns how many there were. Until this returns nothing may mention the digest. Where it raises or is cancelled,
        no part of it is visible: at most the whole, which nobody mentions, where making it durable failed; the sweep
        deletes that.
        Raises InputError ``digest_mismatch`` for other bytes than promised, TooLarge at the first byte past ``limit``,
        StorageError ``storage_full``, and whatever the stream raises.
        """
        passing = _Passing(stream, digest, size=size, limit=limit)
        await self._keep(shelf, digest, lambda key: self._write(key, passing.chunks()), point)
        return passing.size

    async def keep(self, shelf: Shelf, body: Received, *, point: str) -> None:
        """Make what has come in a blob under its digest, and durable; its scratch file is gone afterwards, or the
        caller deletes it. No byte is hashed again. Raises StorageError ``storage_full``.
        """
        await self._keep(shelf, body.sha256, lambda key: self._adopt(key, body.path), point)

    async def _keep(self, shelf: Shelf, digest: str, write: Callable[[str], Awaitable[None]], point: str) -> None:
        key = key_of(shelf, digest)
        try:
            async with self._removing:
                self._written[digest] = math.inf
            await write(key)
            self._faults.reach(f"{point}_blob.before_sync")
            await asyncio.to_thread(self._objects.sync, key)
        except (OSError, obstore.exceptions.BaseError) as error:
            raise storage_full(error) or error from error
        finally:
            self._written[digest] = time.monotonic()
        self._faults.reach(f"{point}_blob.after_sync")

    async def _write(self, key: str, stream: AsyncIterator[bytes]) -> None:
        await obstore.put_async(self._objects.store, key, stream)

    async def _adopt(self, key: str, file: Path) -> None:
        await self._objects.adopt(key, file)

    async def keep_parts(self, name: str, *, point: str) -> None:
        """Make the parts of an upload durable where they are. Raises StorageError ``storage_full``."""
        self._faults.reach(f"{point}_blob.before_sync")
        try:
            await self.parts.sync(name)
        except (OSError, obstore.exceptions.BaseError) as error:
            raise storage_full(error) or error from error
        self._faults.reach(f"{point}_blob.after_sync")

    async def read(self, shelf: Shelf, digest: str, start: int, stop: int) -> AsyncIterator[bytes]:
        """The bytes [start, stop) of a blob, in chunks. Raises StorageError (``blob_damaged``) for a missing file."""
        for offset in range(start, stop, CHUNK):
            end = min(offset + CHUNK, stop)
            try:
                key = key_of(shelf, digest)
                part = await obstore.get_range_async(self._objects.store, key, start=offset, end=end)
            except FileNotFoundError:
                raise await asyncio.to_thread(self.reader.damaged, shelf, digest, "a blob") from None
            yield bytes(part)

    async def exists(self, shelf: Shelf, digest: str) -> bool:
        """Whether the bytes are there."""
        try:
            await obstore.head_async(self._objects.store, key_of(shelf, digest))
        except FileNotFoundError:
            return False
        return True

    async def delete(self, shelf: Shelf, digests: Sequence[str]) -> None:
        """Delete blobs that no row mentions, or will need again; those already gone do not matter."""
        self._faults.reach("blobs.before_delete")
        for digest in digests:
            with suppress(FileNotFoundError):
                await obstore.delete_async(self._objects.store, key_of(shelf, digest))
        self._faults.reach("blobs.after_delete")

    async def stored(self, shelf: Shelf) -> list[Stored]:
        """Every blob on a shelf."""
        store: Any = self._objects.store  # the overloads of its list are only partly typed
        now = datetime.now(UTC)
        return [
            Stored(str(entry["path"]).rsplit("/", 1)[-1], (now - entry["last_modified"]).total_seconds())
            async for batch in store.list(shelf)
            for entry in batch
        ]

    async def delete_older(self, shelf: Shelf, digest: str, age_s: float) -> bool:
        """Delete a blob that no row mentions, unless it was written again lately. Whether it was deleted."""
        # Whoever writes it again waits for this, or is seen here.
        async with self._removing:
            try:
                found = await obstore.head_async(self._objects.store, key_of(shelf, digest))
            except FileNotFoundError:
                return False
            again = time.monotonic() - self._written.get(digest, -math.inf) < age_s
            if again or (datetime.now(UTC) - found["last_modified"]).total_seconds() < age_s:
                return False
            await self.delete(shelf, [digest])
            return True

    async def drop_unfinished(self, age_s: float) -> None:
        """Delete what writers that were killed have left half written, when it is so old."""
        await asyncio.to_thread(self._objects.drop_unfinished, age_s)

    def forget_written(self, age_s: float) -> None:
        """Forget which blobs this process wrote longer ago than that."""
        now = time.monotonic()
        self._written = {digest: at for digest, at in self._written.items() if now - at < age_s}

    def _empty_file(self) -> Path:
        descriptor, name = tempfile.mkstemp(dir=self.scratch, prefix="body-")
        os.close(descriptor)
        return Path(name)

    async def receive(self, stream: AsyncIterable[bytes], *, limit: int) -> Received:
        """Stream a body into a scratch file, hashed once while it arrives; the caller deletes the file.

        Raises TooLarge at the first byte past ``limit`` and StorageError; in both cases the file is gone.
        """
        path = self._empty_file()
        digest, size = hashlib.sha256(), 0
        try:
            with path.open("wb") as file:
                async for chunk in stream:
                    size += len(chunk)
                    if size > limit:
                        raise too_large(limit)
                    digest.update(chunk)
                    await asyncio.to_thread(file.write, chunk) if len(chunk) > CHUNK else file.write(chunk)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise storage_full(error) or error from error
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return Received(path, digest.hexdigest(), size)


class _Passing:
    """A stream that is counted and hashed while it passes, and that breaks where it is not what was promised."""

    def __init__(self, stream: AsyncIterable[bytes], digest: str, *, size: int | None, limit: int | None) -> None:
        self.size = 0
        self._stream, self._digest, self._wanted, self._limit = stream, digest, size, limit

    async def chunks(self) -> AsyncIterator[bytes]:
        """The chunks. The error comes before the end, so that whoever takes them never sees a whole."""
        found = hashlib.sha256()
        async for chunk in self._stream:
            self.size += len(chunk)
            if self._limit is not None and self.size > self._limit:
                raise too_large(self._limit)
            found.update(chunk)
            if chunk:
                yield chunk
        if found.hexdigest() != self._digest or self._wanted not in (None, self.size):
            expected = self._digest if self._wanted is None else f"{self._digest} and {self._wanted} bytes"
            raise InputError(
                f"The {self.size} bytes received have the digest {found.hexdigest()}, not {expected}.",
                hint="Send the whole file again.",
                code="digest_mismatch",
            )


async def in_one(data: bytes) -> AsyncIterator[bytes]:
    """Bytes that are in memory, as a stream."""
    yield data
