"""Parts of uploads that go on later, as objects of the store: whichever process takes the next part finds them.

A part is named by where it starts and how long it is. What a device promised is durable only when its update is
accepted, so parts are not synced: after a crash of the machine the device is told how much is left and sends the rest.
A message of a session stays as the parts in which it came, which are synced when it is accepted: a gigabyte is written
once. What an upload is of stands here as its *task*: a task's id, or a name for the message.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import obstore

from coterie.server.store.objects import Objects
from coterie.server.store.received import Received

CHUNK: Final = 1024 * 1024


@dataclass(frozen=True, order=True)
class StoredPart:
    """The bytes from ``start`` up to, not including, ``stop`` of a task's upload."""

    start: int
    stop: int


@dataclass(frozen=True)
class UploadParts:
    """The parts in a store."""

    objects: Objects

    async def received_bytes(self, task: str) -> int:
        """How many bytes of a task's upload are here, from its beginning on without a gap."""
        return _reach(await self._parts(task))

    async def add(self, task: str, start: int, body: Received) -> None:
        """Keep a part in place of whatever was here from its start on, so that a repeated part is harmless. Its scratch
        file is gone afterwards, or the caller deletes it.
        """
        for part in await self._parts(task):
            if part.start < start < part.stop:
                data = await obstore.get_range_async(
                    self.objects.store, _key(task, part), start=0, end=start - part.start
                )
                await obstore.put_async(self.objects.store, _key(task, StoredPart(part.start, start)), bytes(data))
            if part.stop > start:
                await self._delete(_key(task, part))
        await self.objects.adopt(_key(task, StoredPart(start, start + body.size)), body.path)

    async def join(self, task: str, start: int, last: Received) -> AsyncIterator[bytes]:
        """What is here up to ``start``, and the last part after it."""
        async for chunk in self.read(task, 0, start):
            yield chunk
        async for chunk in last.chunks():
            yield chunk

    async def digest(self, task: str, length: int) -> str:
        """The SHA-256, as hex, of the first ``length`` bytes of an upload."""
        digest = hashlib.sha256()
        async for chunk in self.read(task, 0, length):
            await asyncio.to_thread(digest.update, chunk)
        return digest.hexdigest()

    async def sync(self, task: str) -> None:
        """Make the parts of an upload durable."""
        for part in await self._parts(task):
            await asyncio.to_thread(self.objects.sync, _key(task, part))

    async def drop(self, task: str) -> None:
        """Delete the parts of a task's upload."""
        for part in await self._parts(task):
            await self._delete(_key(task, part))
        if self.objects.folder is not None:
            with suppress(OSError):  # another part has just come
                (self.objects.folder / "parts" / task).rmdir()

    async def tasks(self) -> frozenset[str]:
        """The tasks that have parts here."""
        store: Any = self.objects.store  # the overloads of its list are only partly typed
        return frozenset([str(entry["path"]).split("/")[1] async for batch in store.list("parts") for entry in batch])

    async def _parts(self, task: str) -> list[StoredPart]:
        store: Any = self.objects.store
        names = [
            str(entry["path"]).rsplit("/", 1)[-1] async for batch in store.list(f"parts/{task}") for entry in batch
        ]
        return sorted(StoredPart(*(int(number, 16) for number in name.split("-"))) for name in names)

    async def read(self, task: str, start: int, stop: int) -> AsyncIterator[bytes]:
        """The bytes [start, stop) of an upload, in chunks, as far as they are here without a gap."""
        place = start
        for part in await self._parts(task):
            # A crash between two writes can leave a part twice, once cut short.
            while part.start <= place < min(part.stop, stop):
                end = min(part.stop, stop, place + CHUNK)
                yield bytes(
                    await obstore.get_range_async(
                        self.objects.store, _key(task, part), start=place - part.start, end=end - part.start
                    )
                )
                place = end

    async def _delete(self, key: str) -> None:
        try:
            await obstore.delete_async(self.objects.store, key)
        except FileNotFoundError:
            return


def _reach(parts: list[StoredPart]) -> int:
    place = 0
    for part in parts:
        if part.start <= place:
            place = max(place, part.stop)
    return place


def _key(task: str, part: StoredPart) -> str:
    return f"parts/{task}/{part.start:016x}-{part.stop:016x}"
