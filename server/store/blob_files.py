"""Blobs as files of this machine, for what reads them block by block: numeric jobs and checks. Everything blocks.

In a store that is a folder they are its own files. Of any other store they are copies, made when first asked for and
held to their digest.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import obstore

from coterie.errors import StorageError
from coterie.server.store.objects import Objects, Shelf, key_of, open_objects

DAMAGED: Final = "blob_damaged"
COPIES: Final = 256
"""How many copies of blobs are kept; those of updates go with their round."""


@dataclass(frozen=True)
class BlobFiles:
    """Blobs as files.

    objects: the store.
    copies: a folder for copies of what lies elsewhere.
    """

    objects: Objects
    copies: Path

    def to_json(self) -> dict[str, str]:
        """What a worker needs to open the same blobs. Not the fields: an open store is told by its address."""
        return {"url": self.objects.url, "copies": str(self.copies)}

    @staticmethod
    def from_json(value: Mapping[str, str]) -> "BlobFiles":
        """The files that a job's arguments speak of."""
        return BlobFiles(open_objects(value["url"]), Path(value["copies"]))

    def file(self, shelf: Shelf, digest: str, what: str = "a blob") -> Path:
        """The file of a blob.

        what: it is, for the message. Raises StorageError (``blob_damaged``) for one that is missing.
        """
        if self.objects.folder is not None:
            path = self.objects.folder / key_of(shelf, digest)
            if not path.exists():
                raise self.damaged(shelf, digest, what)
            return path
        path = self.copies / f"{shelf}-{digest}"
        if not path.exists():
            self._copy(shelf, digest, what, path)
        return path

    def check(self, shelf: Shelf, digest: str, what: str) -> Path:
        """The file of a blob whose bytes are those that it is named for. Raises StorageError (``blob_damaged``)."""
        path = self.file(shelf, digest, what)
        if _sha256(path) != digest:
            raise self.damaged(shelf, digest, what)
        return path

    def read(self, shelf: Shelf, digest: str, what: str = "a blob") -> bytes:
        """The bytes of a blob. Raises StorageError (``blob_damaged``) for one that is missing."""
        return self.file(shelf, digest, what).read_bytes()

    def is_intact(self, shelf: Shelf, digest: str) -> bool:
        """Whether a blob is there, and its bytes are those that it is named for."""
        try:
            self.check(shelf, digest, "a blob")
        except (StorageError, OSError):
            return False
        return True

    def damaged(self, shelf: Shelf, digest: str, what: str) -> StorageError:
        """The error for a blob that is missing or not what was stored."""
        key = key_of(shelf, digest)
        try:
            obstore.head(self.objects.store, key)
            fault = "has changed since it was stored"
        except FileNotFoundError:
            fault = "is missing"
        return StorageError(
            f"The file {self.objects.where(key)} of {what} {fault}.",
            hint="Restore it from a backup of the coordinator's folder, and check the disk.",
            code=DAMAGED,
        )

    def forget(self, shelf: Shelf, digests: Iterable[str]) -> None:
        """Delete the copies of these blobs."""
        for digest in digests:
            (self.copies / f"{shelf}-{digest}").unlink(missing_ok=True)

    def _copy(self, shelf: Shelf, digest: str, what: str, path: Path) -> None:
        """Copy a blob of another machine, whole or not at all."""
        self.copies.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self.copies)
        try:
            found = hashlib.sha256()
            with os.fdopen(descriptor, "wb") as target:
                for chunk in obstore.get(self.objects.store, key_of(shelf, digest)).stream():
                    found.update(chunk)
                    target.write(chunk)
            if found.hexdigest() != digest:
                raise self.damaged(shelf, digest, what)
            os.replace(name, path)
        except FileNotFoundError:
            raise self.damaged(shelf, digest, what) from None
        finally:
            Path(name).unlink(missing_ok=True)
        copies = sorted(self.copies.glob("blobs-*"), key=lambda each: each.stat().st_mtime)
        for old in copies[:-COPIES]:
            old.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
