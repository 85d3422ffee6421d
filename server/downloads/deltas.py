"""Deltas between model versions, made when first asked for and kept beside the blobs as a cache that may be deleted at
any time.

Anybody may ask, so a worker process of low priority makes them, one at a time, block by block; few may wait for it; and
only so many are kept. Whoever gets none fetches the whole version.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from coterie.errors import CoterieError
from coterie.protocol.private_files import make_private_folder
from coterie.server.store.blobs import BlobStore
from coterie.server.worker.workers import Workers

SMALLEST: Final = 4096
LARGEST: Final = 256 * 1024 * 1024
PAYS: Final = 0.8
KEPT: Final = 64
WAITING: Final = 8
"""How many pairs of versions may be made or wait for it."""

Pair = tuple[str, str]


class Deltas:
    """Makes each delta once. For pairs of versions that lie too far apart it remembers that a delta does not pay."""

    def __init__(self, blobs: BlobStore, workers: Workers, handed_out: Callable[[str], bool]) -> None:
        """A cache of deltas.

        handed_out: whether devices are given this version now. Deltas are made only to such versions.
        """
        self._blobs = blobs
        self._workers = workers
        self._handed_out = handed_out
        self._folder = blobs.local / "deltas"
        make_private_folder(self._folder)
        self._pays: dict[Pair, bool] = {}
        self._making: dict[Pair, asyncio.Task[None]] = {}

    async def delta_file(self, old: str, new: str, size: int) -> Path | None:
        """The file of the delta from one version to another, both of that size; None where it does not pay, or too many
        wait. It may be dropped at any time.
        """
        pair, path = (old, new), self._folder / f"{old}-{new}"
        if not SMALLEST <= size <= LARGEST or self._pays.get(pair) is False:
            return None
        if path.exists():
            os.utime(path)
            return path
        if pair not in self._making:
            if len(self._making) >= WAITING or not self._handed_out(new):
                return None
            self._making[pair] = asyncio.create_task(self._make(pair, path), name="delta")
        await asyncio.shield(self._making[pair])
        return path if self._pays.get(pair) else None

    async def _make(self, pair: Pair, path: Path) -> None:
        """Make the file, or remember that it does not pay; a version that is gone, a full disk or a lost worker is no
        reason to refuse the whole version.
        """
        try:
            with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                made = Path(scratch) / "delta"
                job = {
                    "blobs": self._blobs.reader.to_json(),
                    "old": pair[0],
                    "new": pair[1],
                    "out": str(made),
                    "pays": PAYS,
                }
                result = await self._workers.run("delta", job)
                if result["pays"]:
                    made.replace(path)
                self._remember(pair, result["pays"])
            self._drop_oldest()
        except (OSError, CoterieError):
            self._remember(pair, pays=False)
        finally:
            del self._making[pair]

    def _drop_oldest(self) -> None:
        files = [file for file in self._folder.iterdir() if file.is_file()]
        for file in sorted(files, key=lambda file: -file.stat().st_mtime)[KEPT:]:
            file.unlink(missing_ok=True)

    def _remember(self, pair: Pair, pays: bool) -> None:
        while len(self._pays) >= 16 * KEPT:
            self._pays.pop(next(iter(self._pays)))
        self._pays[pair] = pays

    async def close(self) -> None:
        """Make no more."""
        for task in self._making.values():
            task.cancel()
        await asyncio.gather(*self._making.values(), return_exceptions=True)
        await self._workers.close()
