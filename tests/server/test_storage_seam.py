"""Blobs and parts of uploads obey the same laws in every store, and what crashes leave goes when it is old."""

import asyncio
import errno
import hashlib
import json
import os
import random
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from obstore.store import MemoryStore
from server_kit import Opener, Operator, fleet, sha256

from coterie.errors import InputError, StorageError, TensorFileError, TooLarge, Unauthenticated
from coterie.protocol.tensors import encode_tensors, open_tensors, read_file
from coterie.server.credentials.nonces import Nonces
from coterie.server.faults import CoordinatorFaults
from coterie.server.store import events
from coterie.server.store.blob_reader import BlobReader
from coterie.server.store.blobs import BlobStore
from coterie.server.store.devices import DeviceCache, KnownDevice
from coterie.server.store.housekeeping import NONCE_KEY
from coterie.server.store.objects import Objects, key_of, open_objects
from coterie.server.store.parts import UploadParts
from coterie.server.store.received import Received
from coterie.server.store.tables import SecretRow

DATA = b"what was promised" * 1000
STORES: dict[str, Callable[[Path], Objects]] = {
    "folder": lambda folder: open_objects((folder / "objects").as_uri()),
    "elsewhere": lambda _: Objects("memory://", MemoryStore(), None),
}


@pytest.fixture(params=STORES)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    return STORES[request.param](tmp_path)


def with_operator(coordinator: Opener, check: Callable[[Operator], Awaitable[None]]) -> None:
    async def work() -> None:
        async with coordinator() as operator:
            await check(operator)

    asyncio.run(work())


def store(objects: Objects, tmp_path: Path, data: bytes = DATA) -> BlobStore:
    """A store that holds one blob and one update of these bytes."""
    blobs = BlobStore(objects, tmp_path / "local", CoordinatorFaults())
    asyncio.run(fill(blobs, data))
    return blobs


async def fill(blobs: BlobStore, data: bytes) -> None:
    """Keep these bytes in both ways: as a stream, and as what has come in."""
    await blobs.put("blobs", sha256(data), pieces(data), point="upload", size=len(data))
    body = await blobs.receive(pieces(data), limit=len(data))
    await blobs.keep("updates", body, point="update")
    body.path.unlink(missing_ok=True)


async def pieces(data: bytes, width: int = 1000) -> AsyncIterator[bytes]:
    """Bytes as a stream of small chunks."""
    for start in range(0, len(data), width):
        yield data[start : start + width]
        await asyncio.sleep(0)


def test_a_stored_blob_is_read_listed_and_deleted(objects: Objects, tmp_path: Path) -> None:
    blobs, digest = store(objects, tmp_path), sha256(DATA)

    async def work() -> None:
        assert b"".join([chunk async for chunk in blobs.read("blobs", digest, 3, 9000)]) == DATA[3:9000]
        assert [each.digest for each in await blobs.stored("blobs")] == [digest]
        assert await blobs.exists("updates", digest)
        await blobs.delete("updates", [digest, "0" * 64])
        assert not await blobs.exists("updates", digest)
        assert await blobs.exists("blobs", digest)

    asyncio.run(work())


async def nothing_is_left(blobs: BlobStore, objects: Objects) -> bool:
    """No object, whole or half, and nothing in scratch."""
    files = [] if objects.folder is None else [path for path in objects.folder.rglob("*") if path.is_file()]
    return not files and not await blobs.stored("blobs") and not list(blobs.scratch.iterdir())


LARGE = os.urandom(11 << 20)
"""More than two parts of a multipart upload."""


@pytest.mark.parametrize("data", [b"small", LARGE], ids=["small", "large"])
@pytest.mark.parametrize("fault", ["digest", "size", "limit", "broken off", "cancelled"])
def test_a_stream_that_does_not_end_as_promised_leaves_nothing(
    objects: Objects, tmp_path: Path, data: bytes, fault: str
) -> None:
    blobs, digest = BlobStore(objects, tmp_path / "local", CoordinatorFaults()), sha256(data)
    begun = asyncio.Event()

    async def broken() -> AsyncIterator[bytes]:
        async for piece in pieces(data[:-1], 1 << 20):
            yield piece
        begun.set()
        if fault == "cancelled":
            await asyncio.sleep(60)
        raise ConnectionResetError("the sender went away")

    async def work() -> None:
        stream = broken() if fault in ("broken off", "cancelled") else pieces(data, 1 << 20)
        promised = sha256(data + b"!") if fault == "digest" else digest
        size = len(data) + 1 if fault == "size" else None
        limit = len(data) - 1 if fault == "limit" else None
        putting = asyncio.create_task(blobs.put("blobs", promised, stream, point="upload", size=size, limit=limit))
        if fault == "cancelled":
            await begun.wait()
            putting.cancel()
        with pytest.raises(EXPECTED[fault]) as caught:
            await putting
        if fault in ("digest", "size"):
            assert isinstance(caught.value, InputError) and caught.value.reason == "digest_mismatch"
            assert f"The {len(data)} bytes received have the digest {digest}" in caught.value.message
        for _ in range(200):  # a store that was given up deletes its parts when it gets to it
            if await nothing_is_left(blobs, objects):
                break
            await asyncio.sleep(0.01)
        assert await nothing_is_left(blobs, objects)
        assert not await blobs.exists("blobs", promised)
        assert await blobs.put("blobs", digest, pieces(data, 1 << 20), point="upload", limit=len(data)) == len(data)
        assert await asyncio.to_thread(blobs.reader.read, "blobs", digest) == data

    asyncio.run(work())


EXPECTED: dict[str, type[BaseException]] = {
    "digest": InputError,
    "size": InputError,
    "limit": TooLarge,
    "broken off": ConnectionResetError,
    "cancelled": asyncio.CancelledError,
}


def test_a_stream_passes_without_being_held_in_memory(tmp_path: Path) -> None:
    blobs, count = (
        BlobStore(open_objects((tmp_path / "objects").as_uri()), tmp_path / "local", CoordinatorFaults()),
        256,
    )
    piece, found = bytes(1 << 20), hashlib.sha256()
    for _ in range(count):
        found.update(piece)

    async def many() -> AsyncIterator[bytes]:
        for _ in range(count):
            yield piece

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert asyncio.run(blobs.put("blobs", found.hexdigest(), many(), point="upload")) == count << 20
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 128


def test_what_has_come_in_is_hashed_once_and_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = BlobStore(open_objects((tmp_path / "objects").as_uri()), tmp_path / "local", CoordinatorFaults())
    hashed: list[int] = []

    class Counting:
        def __init__(self) -> None:
            self.inner = hashlib.new("sha256")

        def update(self, data: bytes) -> None:
            hashed.append(len(data))
            self.inner.update(data)

        def hexdigest(self) -> str:
            return self.inner.hexdigest()

    async def work() -> None:
        body = await blobs.receive(pieces(DATA), limit=len(DATA))
        number = body.path.stat().st_ino
        await blobs.keep("updates", body, point="update")
        with blobs.reader.local_copy("updates", body.sha256, check=False) as path:
            assert path.stat().st_ino == number  # the very file, moved and not copied
        assert not body.path.exists()

    monkeypatch.setattr(hashlib, "sha256", Counting)
    asyncio.run(work())
    assert sum(hashed) == len(DATA)


def test_a_body_is_copied_where_the_store_is_on_another_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = BlobStore(open_objects((tmp_path / "objects").as_uri()), tmp_path / "local", CoordinatorFaults())

    def another_disk(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "replace", another_disk)
    asyncio.run(fill(blobs, DATA))
    assert blobs.reader.read("updates", sha256(DATA)) == DATA


def test_a_blob_is_lent_as_a_file_for_a_scope_wherever_it_is_stored(objects: Objects, tmp_path: Path) -> None:
    blobs, digest = store(objects, tmp_path), sha256(DATA)
    with blobs.reader.local_copy("blobs", digest, "a plan") as path:
        assert path.read_bytes() == DATA
    assert path.exists() == (objects.folder is not None)
    assert list(blobs.scratch.iterdir()) == []
    assert blobs.reader.read("updates", digest) == DATA
    for check in (True, False):
        with pytest.raises(StorageError, match="of a plan is missing") as caught:
            with blobs.reader.local_copy("blobs", "0" * 64, "a plan", check=check):
                pass
        assert caught.value.reason == "blob_damaged"
    asyncio.run(blobs.delete("updates", [digest]))
    with pytest.raises(StorageError, match="of an update is missing"):
        blobs.reader.read("updates", digest, "an update")


def test_tensors_are_read_from_a_store_by_ranges(objects: Objects, tmp_path: Path) -> None:
    tensors = {"w": np.arange(300_000, dtype=np.float32).reshape(3, -1), "none": np.zeros(0, np.float32)}
    data = encode_tensors(tensors, {"of": "a test"})
    blobs = store(objects, tmp_path, data)
    source = blobs.reader.range_of("blobs", sha256(data), "a model")
    found = read_file(source)
    assert found.keys() == tensors.keys() and all(np.array_equal(found[name], tensors[name]) for name in tensors)
    assert open_tensors(source).read("w", 100, 103).tolist() == [100, 101, 102]
    objects.store.put(key_of("blobs", sha256(data)), data[:-4])
    with pytest.raises((TensorFileError, StorageError)):
        read_file(source)
    objects.store.delete(key_of("blobs", sha256(data)))
    with pytest.raises(StorageError, match="of a model is missing"):
        read_file(source)
    with pytest.raises(StorageError, match="of a model is missing"):
        blobs.reader.range_of("blobs", sha256(data), "a model")


def test_a_blob_that_has_changed_is_never_taken_for_what_was_stored(objects: Objects, tmp_path: Path) -> None:
    blobs, digest = store(objects, tmp_path), sha256(DATA)
    objects.store.put(key_of("blobs", digest), DATA[:-1] + b"!")
    ways: tuple[Callable[[], object], ...] = (
        lambda: blobs.reader.check("blobs", digest, "a model version"),
        lambda: blobs.reader.read("blobs", digest, "a model version"),
        lambda: list(blobs.reader.stream("blobs", digest, "a model version")),
        lambda: blobs.reader.local_copy("blobs", digest, "a model version").__enter__(),
    )
    for way in ways:
        with pytest.raises(StorageError, match="has changed since it was stored"):
            way()


def test_a_worker_opens_the_same_folder_by_its_url(tmp_path: Path) -> None:
    blobs = store(open_objects((tmp_path / "a folder").as_uri()), tmp_path)
    assert BlobReader.from_json(blobs.reader.to_json()).read("blobs", sha256(DATA)) == DATA


@pytest.mark.parametrize("seed", range(8))
def test_parts_in_any_order_with_repeats_join_to_the_whole(objects: Objects, tmp_path: Path, seed: int) -> None:
    draw, parts, whole = random.Random(seed), UploadParts(objects), os.urandom(4000)

    def received(data: bytes) -> Received:
        (tmp_path / "body").write_bytes(data)
        return Received(tmp_path / "body", sha256(data), len(data))

    async def work() -> None:
        held = 0
        while held < 3500:
            # A device goes on where it believes to be: never beyond what is here, often before it.
            start = draw.choice([held, draw.randint(0, held)])
            body = received(whole[start : start + draw.randint(1, 700)])
            await parts.add("task_1", start, body)
            held = await parts.received_bytes("task_1")
            assert held == start + body.size
        start = draw.randint(0, held)
        joined = parts.join("task_1", start, received(whole[start:]))
        assert b"".join([chunk async for chunk in joined]) == whole
        assert await parts.tasks() == {"task_1"}
        await parts.drop("task_1")
        assert (await parts.tasks(), await parts.received_bytes("task_1")) == (frozenset(), 0)

    asyncio.run(work())


def test_a_part_that_leaves_a_gap_does_not_count(objects: Objects, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"12345")

    async def work() -> None:
        await UploadParts(objects).add("task_1", 3, Received(body, sha256(b"12345"), 5))
        assert await UploadParts(objects).received_bytes("task_1") == 0

    asyncio.run(work())


def test_an_orphan_that_is_written_again_outlives_the_sweep(tmp_path: Path) -> None:
    blobs, digest = store(open_objects((tmp_path / "objects").as_uri()), tmp_path), sha256(DATA)
    hour_ago = time.time() - 3600
    with blobs.reader.local_copy("updates", digest) as path:
        os.utime(path, (hour_ago, hour_ago))
    # Old by its time, but this process has just written it.
    assert not asyncio.run(blobs.delete_older("updates", digest, 600))
    again = BlobStore(open_objects((tmp_path / "objects").as_uri()), tmp_path / "local", CoordinatorFaults())
    assert asyncio.run(again.delete_older("updates", digest, 600))
    assert not asyncio.run(again.delete_older("updates", digest, 600))


def test_what_a_killed_writer_left_half_written_goes_when_it_is_old(tmp_path: Path) -> None:
    blobs, digest = store(open_objects((tmp_path / "objects").as_uri()), tmp_path), sha256(DATA)
    folder = tmp_path / "objects" / "blobs" / digest[:2]
    old, young, hour_ago = folder / f"{digest}#1", folder / f"{digest}#2", time.time() - 3600
    for path in (old, young, folder / digest):
        path.write_bytes(DATA)
    for path in (old, folder / digest):
        os.utime(path, (hour_ago, hour_ago))
    assert [each.digest for each in asyncio.run(blobs.stored("blobs"))] == [digest]  # no listing shows them
    asyncio.run(blobs.drop_unfinished(600))
    assert sorted(path.name for path in folder.iterdir()) == [digest, young.name]


def test_events_are_numbered_without_a_gap_in_the_order_of_commits(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        database = operator.app.state.coordinator.storage.database
        async with database.read() as session:
            last = max((event.id for event in await events.after(session, 0, None, None, 1000)), default=0)
        committed: list[int] = []

        async def one(number: int) -> None:
            try:
                async with database.write("stop") as session:
                    events.append(session, "test", {"number": number})
                    events.append(session, "test", {"number": number})
                    await asyncio.sleep(0)
                    if number % 3 == 0:
                        raise ConnectionError
                    committed.append(number)
            except ConnectionError:
                pass

        await asyncio.gather(*(one(number) for number in range(20)))
        async with database.read() as session:
            found = await events.after(session, last, None, None, 1000)
        assert [event.id for event in found] == list(range(last + 1, last + 1 + 2 * len(committed)))
        assert [json.loads(event.data)["number"] for event in found] == [n for n in committed for _ in range(2)]

    with_operator(coordinator, check)


def test_the_key_of_nonces_outlives_a_restart(coordinator: Opener) -> None:
    async def work() -> None:
        seals: list[bytes] = []
        for _ in range(2):
            async with coordinator() as operator, operator.app.state.coordinator.storage.database.read() as session:
                row = await session.get(SecretRow, NONCE_KEY)
                assert row is not None
                seals.append(row.value)
        assert seals[0] == seals[1] and len(seals[0]) == 32

    asyncio.run(work())


def test_processes_of_one_coordinator_take_each_others_nonces_but_none_older_than_themselves() -> None:
    now = [1_000_000]
    first = Nonces(b"k" * 32, 60, lambda: now[0])
    before = first.issue("dev_a")
    now[0] += 1
    second = Nonces(b"k" * 32, 60, lambda: now[0])
    after = first.issue("dev_a")
    assert second.check("dev_a", after) == first.check("dev_a", after)
    assert first.check("dev_a", before)
    with pytest.raises(Unauthenticated, match="lately"):
        second.check("dev_a", before)


def test_what_is_remembered_of_a_device_expires(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        (device,) = await fleet(operator, await operator.population(), 1)
        now, database = [0.0], operator.app.state.coordinator.storage.database
        cache = DeviceCache(database, lasts_s=30, clock=lambda: now[0])
        elsewhere = operator.app.state.coordinator.presence.devices
        assert not (await known(cache, device.id)).revoked
        # Revoked by another process: this one is told by nobody.
        await operator.ok("POST", f"/v1/devices/{device.id}/revoke")
        assert elsewhere is not cache
        now[0] = 29.9
        assert not (await known(cache, device.id)).revoked
        now[0] = 30.0
        assert (await known(cache, device.id)).revoked

    with_operator(coordinator, check)


async def known(cache: DeviceCache, identifier: str) -> KnownDevice:
    device = await cache.find(identifier)
    assert device is not None
    return device
