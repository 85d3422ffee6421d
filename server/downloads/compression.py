"""zstd forms of blobs, made when first asked for and kept beside the blobs as a cache that may be deleted at any
time.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

from coterie.errors import StorageError
from coterie.protocol.private_files import make_private_folder
from coterie.server.store.blobs import CHUNK, BlobStore

SMALLEST = 512
LARGEST = 512 * 1024 * 1024
PAYS = 0.95
LEVEL = 3


@dataclass(frozen=True)
class Variant:
    """What of a blob is sent: the bytes [start, stop), as stored or from a packed file."""

    start: int
    stop: int
    status: int
    packed: Path | None


class Compression:
    """Packs each blob once. Weights hardly shrink; for those it remembers that packing does not pay."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._folder = blobs.local / "zstd"
        make_private_folder(self._folder)
        self._pays: dict[str, bool] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def packed(self, digest: str, size: int) -> Path | None:
        """The packed file of a blob, or None where packing does not pay or the disk is full."""
        if not SMALLEST <= size <= LARGEST or self._pays.get(digest) is False:
            return None
        path = self._folder / digest
        async with self._locks.setdefault(digest, asyncio.Lock()):
            if digest not in self._pays:
                self._pays[digest] = path.exists() or await asyncio.to_thread(self._pack, digest, size, path)
        return path if self._pays[digest] else None

    def _pack(self, digest: str, size: int, path: Path) -> bool:
        descriptor, name = tempfile.mkstemp(dir=self._folder)
        try:
            packer = zstandard.ZstdCompressor(level=LEVEL).compressobj(size=size)
            with os.fdopen(descriptor, "wb") as target:
                for chunk in self._blobs.reader.stream("blobs", digest):
                    target.write(packer.compress(chunk))
                target.write(packer.flush())
            if os.path.getsize(name) > size * PAYS:
                return False
            os.replace(name, path)
            return True
        except (OSError, StorageError, zstandard.ZstdError):
            return False  # no room for a cache is no reason to refuse the blob
        finally:
            Path(name).unlink(missing_ok=True)

    async def read(self, packed: Path) -> AsyncIterator[bytes]:
        """The bytes of a packed file, in chunks."""
        with packed.open("rb") as file:
            while chunk := await asyncio.to_thread(file.read, CHUNK):
                yield chunk
