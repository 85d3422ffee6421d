"""Immutable blobs by their hash: downloaded once, resumed where a download broke off, verified before every use."""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from coterie.client_sdk.answers import pieces
from coterie.client_sdk.http import Link
from coterie.client_sdk.lean_httpx import httpx
from coterie.errors import InputError, PolicyRefused, RemoteError
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.delta import ASKED, decode_delta
from coterie.protocol.files import storage_error, sync_folder, write_durably

CACHE_BYTES: Final = 2 << 30
MOST_HELD: Final = 4


class BlobCache:
    """Blobs in ``folder``, each a file named by its SHA-256; a download in progress is ``<sha256>.part``.

    reached: called with "downloading" after every piece that is on disk (the hook for faults).
    """

    def __init__(self, folder: Path, link: Link, *, reached: Callable[[str], None] = lambda point: None) -> None:
        self._folder = folder
        self._link = link
        self._reached = reached

    async def fetch(
        self, sha256: str, *, limit: int, size: int | None = None, delta: Literal["none", "from_held"] = "none"
    ) -> bytes:
        """The bytes whose SHA-256 is ``sha256``, from the cache or else from the coordinator.

        limit: the most bytes that may be downloaded.
        size: how many there are, when that is known.
        delta: ``from_held`` lets the coordinator send the difference to a blob of this size that lies in the cache:
            other model versions.
        Guarantees: what is returned has this hash, whatever lies in the cache or comes over the wire.
        Raises PolicyRefused above the limit, RemoteError (``digest_mismatch``, or what the coordinator says),
        StorageError.
        """
        if size is not None and size > limit:
            raise _too_large(sha256, size, limit)
        path = self._folder / sha256
        data = _read_cached(path)
        if data is not None and sha256_hex(data) == sha256:
            os.utime(path)
            return data
        try:
            # Systems clear caches, folder and all, when they want room.
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(path, error) from error
        part = path.with_suffix(".part")
        bases = self._cached_of_size(size) if delta == "from_held" and not part.exists() else []
        await self._download(sha256, part, limit if size is None else size, bases)
        data = part.read_bytes()
        if sha256_hex(data) != sha256:
            part.unlink()
            raise RemoteError(
                f"The bytes of the coordinator's blob {sha256[:12]} do not match its SHA-256.",
                hint="It is downloaded again at the next attempt; if this repeats, the coordinator's storage is "
                "damaged.",
                code="digest_mismatch",
            )
        try:
            with part.open("rb+") as file:
                os.fsync(file.fileno())
            part.replace(path)
            sync_folder(self._folder)
        except OSError as error:
            raise storage_error(path, error) from error
        return data

    def prune(self, *, keep: frozenset[str], bytes_kept: int = CACHE_BYTES) -> None:
        """Remove the blobs used longest ago until the rest fit into ``bytes_kept``; those in ``keep`` stay."""
        files = sorted(
            (path for path in self._folder.iterdir() if path.is_file()), key=lambda path: -path.stat().st_mtime
        )
        total = 0
        for path in files:
            total += path.stat().st_size
            if total > bytes_kept and path.stem not in keep:
                path.unlink(missing_ok=True)

    def _cached_of_size(self, size: int | None) -> list[str]:
        """The blobs of this size in the cache, used last first."""
        paths = [path for path in self._folder.iterdir() if not path.suffix and path.stat().st_size == size]
        return [path.name for path in sorted(paths, key=lambda path: -path.stat().st_mtime)[:MOST_HELD]]

    async def _download(self, sha256: str, part: Path, limit: int, bases: Sequence[str]) -> None:
        have = part.stat().st_size if part.exists() else 0
        # Compression is for whole answers: a range counts the blob's own bytes.
        headers = {"Range": f"bytes={have}-", "Accept-Encoding": "identity"} if have else {}
        if bases:
            headers = {"A-IM": ASKED, "If-None-Match": ", ".join(f'"{digest}"' for digest in bases)}
        try:
            async with self._link.stream("GET", f"/v1/blobs/{sha256}", headers=headers) as response:
                # A delta that nobody asked for is bytes like any others: the hash will tell.
                if response.status_code == 226 and bases:
                    base = response.headers.get("Delta-Base", "").strip('"')
                    await self._apply(response, sha256, base if base in bases else "", part, limit)
                    return
                if have and response.status_code != 206:
                    have = 0
                try:
                    with part.open("ab" if have else "wb") as file:
                        async for piece in pieces(response):
                            have += len(piece)
                            self._link.bytes_down += len(piece)
                            if have > limit:
                                raise _too_large(sha256, have, limit)
                            file.write(piece)
                            file.flush()
                            self._reached("downloading")
                except OSError as error:
                    raise storage_error(part, error) from error
        except PolicyRefused:
            part.unlink(missing_ok=True)
            raise
        except RemoteError as error:
            # 416: the part on disk is longer than the blob, or just whole; the hash will tell.
            if error.details.get("http_status") != 416:
                raise

    async def _apply(self, response: httpx.Response, sha256: str, base: str, part: Path, limit: int) -> None:
        """Make the blob of one that is held and the delta that comes; where that fails, download it whole."""
        received = bytearray()
        async for piece in pieces(response):
            received += piece
            self._link.bytes_down += len(piece)
            if len(received) > limit:
                raise _too_large(sha256, len(received), limit)
        old = _read_cached(self._folder / base) if base else None
        try:
            if old is None or sha256_hex(old) != base:
                raise InputError("The base blob of the delta is not in the cache.", code="delta_malformed")
            data = await asyncio.to_thread(decode_delta, old, bytes(received))
        except InputError:
            data = b""
        if sha256_hex(data) == sha256:
            write_durably(part, data)
        else:
            await self._download(sha256, part, limit, ())


def _read_cached(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(path, error) from error


def _too_large(sha256: str, size: int, limit: int) -> PolicyRefused:
    return PolicyRefused(
        f"Blob {sha256[:12]} has at least {size} bytes; this device takes at most {limit}.",
        hint="Raise max_download_bytes in the device's policy, if that is meant.",
        code="download_too_large",
    )
