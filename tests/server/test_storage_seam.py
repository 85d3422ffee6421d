"""Blobs and parts of uploads obey the same laws in every store, and what crashes leave goes when it is old."""

import asyncio
import hashlib
import json
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from obstore.store import MemoryStore
from server_kit import Opener, Operator, fleet, sha256

from coterie.errors import StorageError, Unauthenticated
from coterie.server.credentials.nonces import Nonces
from coterie.server.faults import CoordinatorFaults
from coterie.server.store import events
from coterie.server.store.blob_files import BlobFiles
from coterie.server.store.blobs import BlobStore
from coterie.server.store.devices import DeviceCache, KnownDevice
from coterie.server.store.housekeeping import NONCE_KEY
from coterie.server.store.objects import Objects, key_of, open_objects
from coterie.server.store.parts import UploadParts
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
    source = tmp_path / "source"
    source.write_bytes(data)
    asyncio.run(blobs.put("blobs", sha256(data), source, point="upload"))
    asyncio.run(blobs.put("updates", sha256(data), source, point="update"))
    return blobs


def test_a_stored_blob_is_read_listed_and_deleted(objects: Objects, tmp_path: Path) -> None:
    blobs, digest = store(objects, tmp_path), sha256(DATA)

    async def work() -> None:
        assert b"".join([chunk async for chunk in blobs.read(digest, 3, 9000)]) == DATA[3:9000]
        assert [each.digest for each in await blobs.stored("blobs")] == [digest]
        assert await blobs.exists("updates", digest)
        await blobs.delete_updates([digest, "0" * 64])
        assert not await blobs.exists("updates", digest)
        assert await blobs.exists("blobs", digest)

    asyncio.run(work())


def test_a_blob_is_a_file_wherever_it_is_stored(objects: Objects, tmp_path: Path) -> None:
    blobs, digest = store(objects, tmp_path), sha256(DATA)
    assert blobs.files.check("blobs", digest, "a plan").read_bytes() == DATA
    assert blobs.files.read("updates", digest) == DATA
    with pytest.raises(StorageError, match="of a plan is missing") as caught:
        blobs.files.check("blobs", "0" * 64, "a plan")
    assert caught.value.reason == "blob_damaged"
    asyncio.run(blobs.delete_updates([digest]))
    with pytest.raises(StorageError, match="of an update is missing"):
        blobs.files.file("updates", digest, "an update")


def test_a_blob_that_has_changed_is_never_taken_for_what_was_stored(objects: Objects, tmp_path: Path) -> None:
    blobs, digest = store(objects, tmp_path), sha256(DATA)
    objects.store.put(key_of("blobs", digest), DATA[:-1] + b"!")
    assert not blobs.files.is_intact("blobs", digest)
    with pytest.raises(StorageError, match="has changed since it was stored"):
        blobs.files.check("blobs", digest, "a model version")


def test_a_worker_opens_the_same_folder_by_its_url(tmp_path: Path) -> None:
    blobs = store(open_objects((tmp_path / "a folder").as_uri()), tmp_path)
    assert BlobFiles.from_json(blobs.files.to_json()).read("blobs", sha256(DATA)) == DATA


@pytest.mark.parametrize("seed", range(8))
def test_parts_in_any_order_with_repeats_join_to_the_whole(objects: Objects, tmp_path: Path, seed: int) -> None:
    draw, parts, whole = random.Random(seed), UploadParts(objects), os.urandom(4000)
    body, joined = tmp_path / "body", tmp_path / "joined"

    async def work() -> None:
        held = 0
        while held < 3500:
            # A device goes on where it believes to be: never beyond what is here, often before it.
            start = draw.choice([held, draw.randint(0, held)])
            body.write_bytes(whole[start : start + draw.randint(1, 700)])
            await parts.add("task_1", start, body)
            held = await parts.received_bytes("task_1")
            assert held == start + body.stat().st_size
        start = draw.randint(0, held)
        body.write_bytes(whole[start:])
        assert await parts.join("task_1", start, body, joined) == hashlib.sha256(whole).hexdigest()
        assert joined.read_bytes() == whole
        assert await parts.tasks() == {"task_1"}
        await parts.drop("task_1")
        assert (await parts.tasks(), await parts.received_bytes("task_1")) == (frozenset(), 0)

    asyncio.run(work())


def test_a_part_that_leaves_a_gap_does_not_count(objects: Objects, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"12345")

    async def work() -> None:
        await UploadParts(objects).add("task_1", 3, body)
        assert await UploadParts(objects).received_bytes("task_1") == 0

    asyncio.run(work())


def test_an_orphan_that_is_written_again_outlives_the_sweep(tmp_path: Path) -> None:
    blobs, digest = store(open_objects((tmp_path / "objects").as_uri()), tmp_path), sha256(DATA)
    path, hour_ago = blobs.files.file("updates", digest), time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))
    # Old by its time, but this process has just written it.
    assert not asyncio.run(blobs.remove_older("updates", digest, 600))
    again = BlobStore(open_objects((tmp_path / "objects").as_uri()), tmp_path / "local", CoordinatorFaults())
    assert asyncio.run(again.remove_older("updates", digest, 600))
    assert not asyncio.run(again.remove_older("updates", digest, 600))


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
