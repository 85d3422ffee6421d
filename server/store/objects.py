"""Where blobs are kept: a folder, or another object store.

A URL is all that another process needs to open the same store, so jobs name digests, and workers find the bytes.
"""

import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import url2pathname

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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
