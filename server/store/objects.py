"""Where blobs are kept: a folder, or another object store.

A URL is all that another process needs to open the same store, so jobs name digests, and workers find the bytes.
"""

import asyncio
import errno
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import url2pathname

import obstore
from obstore.store import LocalStore, ObjectStore, from_url

Shelf = Literal["blobs", "updates"]


@dataclass(frozen=True)
class Objects:
    """An object store.

    url: by which it was opened.
    store: obstore's side of it.
    folder: where its files are, for a store that is a folder of this machine; None for any other, whose answer to a
        write means that the bytes are durable.
    """

    url: str
    store: ObjectStore = field(compare=False)
    folder: Path | None

    def where(self, key: str) -> str:
        """Where an object is, for messages."""
        return f"{self.url}/{key}" if self.folder is None else str(self.folder / key)

    async def adopt(self, key: str, file: Path) -> None:
        """Make a file of this machine an object, whole or not at all: moved where the store is a folder on the same
        disk, else copied.
        """
        if self.folder is not None and await asyncio.to_thread(_move, file, self.folder / key):
            return
        await obstore.put_async(self.store, key, file)

    def drop_unfinished(self, age_s: float) -> None:
        """Delete what writers that were killed have left in a folder: files that no listing shows, because their
        writing has not ended.

        age_s: since their last byte, in seconds. Other stores have rules of their own for it.
        """
        if self.folder is None:
            return
        before = time.time() - age_s
        # Folders of uploads go while this walks, which `os.walk` takes for empty.
        for folder, _, names in os.walk(self.folder):
            for path in (Path(folder, name) for name in names if "#" in name):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < before:
                        path.unlink()

    def sync(self, key: str) -> None:
        """Force an object and the folders that name it to the disk."""
        if self.folder is None:
            return
        path = self.folder / key
        for each in (path, path.parent, path.parent.parent, self.folder):
            _sync(each)


@lru_cache(maxsize=8)
def open_objects(url: str) -> Objects:
    """The store of a URL, ``file://`` for a folder."""
    parts = urlsplit(url)
    if parts.scheme != "file":
        return Objects(url, from_url(url), None)
    folder = Path(url2pathname(parts.path))
    return Objects(url, LocalStore(folder, mkdir=True), folder)


def key_of(shelf: Shelf, digest: str) -> str:
    """The name of a blob in its store."""
    return f"{shelf}/{digest[:2]}/{digest}"


def _move(file: Path, target: Path) -> bool:
    """Whether a file could be moved there: both places are on one disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(file, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
