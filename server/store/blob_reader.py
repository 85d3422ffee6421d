"""Reading blobs where code may block: numeric jobs and checks, in threads and in processes of their own."""

import hashlib
import os
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import obstore

from coterie.errors import StorageError
from coterie.server.store.objects import Objects, Shelf, key_of, open_objects

DAMAGED: Final = "blob_damaged"
CHUNK: Final = 1024 * 1024


@dataclass(frozen=True)
class BlobRange:
    """A blob whose bytes are fetched range by range (see `tensors.Source`). Nobody holds them to their digest.

    what: it is, for messages.
    size: in bytes.
    """

    reader: "BlobReader"
    shelf: Shelf
    digest: str
    what: str
    size: int

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Fill the buffer with the bytes from ``start`` on. Returns how many there were."""
        store, key, done = self.reader.objects.store, key_of(self.shelf, self.digest), 0
        stop = min(len(buffer), self.size - start)
        while done < stop:
            try:
                end = min(done + CHUNK, stop)
                part = memoryview(obstore.get_range(store, key, start=start + done, end=start + end))
            except FileNotFoundError:
                raise self.reader.damaged(self.shelf, self.digest, self.what) from None
            except obstore.exceptions.BaseError:
                if self.reader.range_of(self.shelf, self.digest, self.what).size == self.size:
                    raise
                break  # it is shorter than it was
            buffer[done : done + len(part)] = part
            done += len(part)
        return done


@dataclass(frozen=True)
class BlobReader:
    """The blobs of a store, for code that blocks.

    Everything raises StorageError (``blob_damaged``) for a blob that is missing.
    objects: the store.
    scratch: a folder of this machine for what is lent, emptied at start.
    """

    objects: Objects
    scratch: Path

    def to_json(self) -> dict[str, str]:
        """What a worker needs to open the same blobs. Not the fields: an open store is told by its address."""
        return {"url": self.objects.url, "scratch": str(self.scratch)}

    @staticmethod
    def from_json(value: Mapping[str, str]) -> "BlobReader":
        """The blobs that a job's arguments speak of."""
        return BlobReader(open_objects(value["url"]), Path(value["scratch"]))

    def stream(self, shelf: Shelf, digest: str, what: str = "a blob") -> Iterator[bytes]:
        """The bytes of a blob, in chunks. Raises StorageError (``blob_damaged``) after the last one where they are not
        those that it is named for.
        """
        found = hashlib.sha256()
        try:
            for part in obstore.get(self.objects.store, key_of(shelf, digest)).stream(min_chunk_size=CHUNK):
                chunk = bytes(part)
                found.update(chunk)
                yield chunk
        except FileNotFoundError:
            raise self.damaged(shelf, digest, what) from None
        if found.hexdigest() != digest:
            raise self.damaged(shelf, digest, what)

    def read(self, shelf: Shelf, digest: str, what: str = "a blob") -> bytes:
        """The bytes of a blob, which are those that it is named for."""
        return b"".join(self.stream(shelf, digest, what))

    def check(self, shelf: Shelf, digest: str, what: str) -> None:
        """Raise StorageError (``blob_damaged``) unless the bytes are those that the blob is named for."""
        for _ in self.stream(shelf, digest, what):
            pass

    def range_of(self, shelf: Shelf, digest: str, what: str) -> BlobRange:
        """A blob for reading parts of it."""
        try:
            size = obstore.head(self.objects.store, key_of(shelf, digest))["size"]
        except FileNotFoundError:
            raise self.damaged(shelf, digest, what) from None
        return BlobRange(self, shelf, digest, what, size)

    @contextmanager
    def local_copy(self, shelf: Shelf, digest: str, what: str = "a blob", *, check: bool = True) -> Generator[Path]:
        """Lend a blob as a file of this machine, for as long as the block lasts.

        It is there for what needs a file and no stream: memory maps, and rules of aggregation that go through many
        updates at once in blocks, as often as they need. Of a store that is a folder it is the blob's own file, which
        nobody may change; of any other a copy that is deleted afterwards. Whoever only reads asks for `read`, `stream`
        or `range_of`.

        check: whether the bytes are held to their digest first; where whoever borrows the file does so, they need not.
        """
        folder = self.objects.folder
        if folder is not None:
            path = folder / key_of(shelf, digest)
            if check:
                self.check(shelf, digest, what)
            elif not path.exists():
                raise self.damaged(shelf, digest, what)
            yield path
            return
        self.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self.scratch, prefix="copy-")
        try:
            with os.fdopen(descriptor, "wb") as target:
                for chunk in self.stream(shelf, digest, what):
                    target.write(chunk)
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

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
