"""Blobs: immutable bytes named by their SHA-256 digest, in an object store.

A name is visible only when its bytes are complete (obstore writes beside and renames). `BlobStore.put` returns after
the file *and* every folder that names it are synced; only then may a row mention the digest. Update files live under
``updates/``, away from everything that is ever served.
"""

import asyncio
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Collection
from pathlib import Path
from typing import Any, Literal

import obstore
from obstore.store import LocalStore

from coterie.errors import StorageError, TooLarge
from coterie.protocol import ids
from coterie.protocol.private_files import make_private_folder
from coterie.server.faults import Faults
from coterie.server.store.intact import damaged

Shelf = Literal["blobs", "updates"]
CHUNK = 1024 * 1024
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


def _key(shelf: Shelf, digest: str) -> str:
    return f"{shelf}/{digest[:2]}/{digest}"


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_file(path: Path) -> None:
    """Force a file's bytes to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


sync_folder = sync_file


class BlobStore:
    """The blobs of one coordinator in a local folder."""

    def __init__(self, folder: Path, faults: Faults) -> None:
        self.folder = folder
        self.scratch = folder / "scratch"
        self._faults = faults
        for part in (folder, folder / "blobs", folder / "updates", self.scratch):
            make_private_folder(part)
        self._store = LocalStore(folder, mkdir=True)

    def path(self, shelf: Shelf, digest: str) -> Path:
        """Where a blob's bytes are, for the workers that read them."""
        return self.folder / _key(shelf, digest)

    def scratch_file(self, name: str) -> Path:
        """A place for bytes that are not promised to anybody yet; emptied at start, except uploads that can be
        resumed.
        """
        return self.scratch / name

    def clear_scratch(self, keep: Collection[str]) -> None:
        """Drop all scratch but the resumable uploads of these tasks."""
        for path in self.scratch.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name not in keep:
                path.unlink(missing_ok=True)

    def resumable(self) -> list[str]:
        """The names of the resumable uploads in scratch: their tasks' ids."""
        return [path.name for path in self.scratch.iterdir() if path.name.startswith(f"{ids.TASK}_")]

    async def put(self, shelf: Shelf, digest: str, source: Path, *, point: str) -> None:
        """Copy a scratch file, whose digest the caller has checked, into the store and make it durable. Repeating it is
        harmless.

        Raises StorageError ``storage_full``. Until this returns nothing may mention the digest; if it raises, nothing
        under that name is visible or it is complete.
        """
        self._faults.reach(f"{point}_blob.before_sync")
        try:
            await self._write(_key(shelf, digest), source)
            await asyncio.to_thread(self._sync, _key(shelf, digest))
        except (OSError, obstore.exceptions.BaseError) as error:
            raise storage_full(error) or error from error
        self._faults.reach(f"{point}_blob.after_sync")

    async def _write(self, key: str, source: Path) -> None:
        await obstore.put_async(self._store, key, source)

    def _sync(self, key: str) -> None:
        path = self.folder / key
        sync_file(path)
        for folder in (path.parent, path.parent.parent, self.folder):
            sync_folder(folder)

    async def read(self, digest: str, start: int, stop: int) -> AsyncIterator[bytes]:
        """The bytes [start, stop) of a blob, in chunks. Raises StorageError (``blob_damaged``) for a missing file."""
        for offset in range(start, stop, CHUNK):
            end = min(offset + CHUNK, stop)
            try:
                part = await obstore.get_range_async(self._store, _key("blobs", digest), start=offset, end=end)
            except FileNotFoundError:
                raise damaged(self.folder / _key("blobs", digest), "a blob") from None
            yield bytes(part)

    async def exists(self, shelf: Shelf, digest: str) -> bool:
        """Whether the bytes are there."""
        try:
            await obstore.head_async(self._store, _key(shelf, digest))
        except FileNotFoundError:
            return False
        return True

    async def delete_updates(self, digests: list[str]) -> None:
        """Delete update files; those already gone do not matter."""
        self._faults.reach("updates.before_delete")
        for digest in digests:
            try:
                await obstore.delete_async(self._store, _key("updates", digest))
            except FileNotFoundError:
                continue
        self._faults.reach("updates.after_delete")

    async def names(self, shelf: Shelf) -> list[str]:
        """The digests of every blob on a shelf."""
        store: Any = self._store  # the overloads of its list are only partly typed
        return [str(entry["path"]).rsplit("/", 1)[-1] async for batch in store.list(shelf) for entry in batch]

    async def remove(self, shelf: Shelf, digest: str) -> None:
        """Delete a blob that no row mentions (an orphan of a crash)."""
        await obstore.delete_async(self._store, _key(shelf, digest))

    def _empty_file(self) -> Path:
        descriptor, name = tempfile.mkstemp(dir=self.scratch, prefix="body-")
        os.close(descriptor)
        return Path(name)

    async def receive(
        self, stream: AsyncIterable[bytes], *, limit: int, into: Path | None = None
    ) -> tuple[Path, str, int]:
        """Stream a body into a scratch file. Returns (file, SHA-256 as hex, size); the caller deletes the file.

        Raises TooLarge at the first byte past ``limit`` and StorageError; in both cases the file is gone.
        """
        path = into or self._empty_file()
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
        return path, digest.hexdigest(), size
