"""Deltas between model versions, made when first asked for and kept beside the blobs as a cache that may be deleted at
any time. Anybody may ask, so they are made one at a time, and only so many are kept.
"""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Final

from coterie.protocol.delta import encode_delta
from coterie.protocol.private_files import make_private_folder
from coterie.server.store.blobs import BlobStore

SMALLEST: Final = 4096
LARGEST: Final = 256 * 1024 * 1024
PAYS: Final = 0.8
KEPT: Final = 64


class Deltas:
    """Makes each delta once. For pairs of versions that lie too far apart it remembers that a delta does not pay."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._folder = blobs.folder / "deltas"
        make_private_folder(self._folder)
        self._pays: dict[tuple[str, str], bool] = {}
        self._lock = asyncio.Lock()

    async def made(self, old: str, new: str, size: int) -> bytes | None:
        """The delta from one version to another, both of that size; None where it does not pay."""
        if not SMALLEST <= size <= LARGEST or self._pays.get((old, new)) is False:
            return None
        async with self._lock:
            if self._pays.get((old, new)) is False:
                return None
            delta = await asyncio.to_thread(self._make, old, new)
            while len(self._pays) >= 16 * KEPT:
                self._pays.pop(next(iter(self._pays)))
            self._pays[old, new] = delta is not None
            return delta

    def _make(self, old: str, new: str) -> bytes | None:
        path = self._folder / f"{old}-{new}"
        try:
            if path.exists():
                path.touch()
                return path.read_bytes()
            before, after = (self._blobs.path("blobs", digest).read_bytes() for digest in (old, new))
        except OSError:
            return None  # the whole version can still be had
        delta = encode_delta(before, after)
        if delta is None or len(delta) > len(after) * PAYS:
            return None
        self._keep(path, delta)
        return delta

    def _keep(self, path: Path, delta: bytes) -> None:
        """Store a delta and drop those used longest ago; no room for a cache is no reason to refuse one."""
        try:
            descriptor, name = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(descriptor, "wb") as file:
                file.write(delta)
            os.replace(name, path)
            files = sorted(self._folder.iterdir(), key=lambda file: -file.stat().st_mtime)
            for file in files[KEPT:]:
                file.unlink(missing_ok=True)
        except OSError:
            return
