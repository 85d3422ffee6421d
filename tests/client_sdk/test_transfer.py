"""Downloads and uploads over bad connections, against a scripted other side that behaves like a coordinator."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from coterie.client_sdk.device.blobs import BlobCache
from coterie.client_sdk.device.signed import SignedLink
from coterie.client_sdk.device.upload import upload
from coterie.client_sdk.http import Link
from coterie.errors import PolicyRefused, RemoteError, Unreachable
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.signing import SigningKey

BLOB = bytes(range(256)) * 40
NAME = sha256_hex(BLOB)
TASK = "task_" + "0" * 32


class Cut(httpx.AsyncByteStream):
    """A body that breaks off."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.data), 1000):
            yield self.data[start : start + 1000]
        raise httpx.ReadError("connection reset")


class Shelf:
    """Serves one blob with ranges; breaks off each of the first ``cuts`` answers after 3000 bytes."""

    def __init__(self, blob: bytes = BLOB, cuts: int = 0) -> None:
        self.blob = blob
        self.cuts = cuts
        self.ranges: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        wanted = request.headers.get("Range", "")
        self.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if start >= len(self.blob):
            return httpx.Response(416)
        rest = self.blob[start:]
        if self.cuts:
            self.cuts -= 1
            return httpx.Response(206 if start else 200, stream=Cut(rest[:3000]))
        return httpx.Response(206 if start else 200, content=rest)


async def fetch(shelf: Shelf, folder: Path, **options: Any) -> bytes:
    folder.mkdir(exist_ok=True)
    link = Link("http://coordinator", transport=httpx.MockTransport(shelf))
    try:
        chosen: dict[str, Any] = {"limit": 1 << 20, **options}
        return await BlobCache(folder, link).fetch(NAME, **chosen)
    finally:
        await link.close()


def test_a_blob_is_downloaded_once_and_then_read_from_the_cache(tmp_path: Path) -> None:
    shelf = Shelf()
    for _ in range(3):
        assert asyncio.run(fetch(shelf, tmp_path)) == BLOB
    assert shelf.ranges == [""]


def test_a_download_that_broke_off_goes_on_where_it_broke(tmp_path: Path) -> None:
    shelf = Shelf(cuts=2)
    for _ in range(2):
        with pytest.raises(Unreachable):
            asyncio.run(fetch(shelf, tmp_path))
    assert asyncio.run(fetch(shelf, tmp_path)) == BLOB
    assert shelf.ranges == ["", "bytes=3000-", "bytes=6000-"]


def test_a_download_killed_after_its_last_byte_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(BLOB)
    assert asyncio.run(fetch(Shelf(), tmp_path)) == BLOB


@pytest.mark.parametrize("damaged", [b"", BLOB[:-1], b"x" + BLOB[1:]])
def test_a_damaged_cache_is_noticed_and_mended(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / NAME).write_bytes(damaged)
    assert asyncio.run(fetch(Shelf(), tmp_path)) == BLOB


def test_a_damaged_part_does_not_poison_the_next_attempt(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.part").write_bytes(b"y" * 500)
    with pytest.raises(RemoteError) as caught:
        asyncio.run(fetch(Shelf(), tmp_path))
    assert caught.value.reason == "digest_mismatch"
    assert asyncio.run(fetch(Shelf(), tmp_path)) == BLOB


def test_other_bytes_under_the_name_are_never_returned(tmp_path: Path) -> None:
    with pytest.raises(RemoteError) as caught:
        asyncio.run(fetch(Shelf(b"evil" + BLOB[4:]), tmp_path))
    assert caught.value.reason == "digest_mismatch" and not (tmp_path / NAME).exists()


@pytest.mark.parametrize(
    "options", [{"limit": 9999}, {"limit": 1 << 20, "size": 9999}, {"limit": 100, "size": len(BLOB)}]
)
def test_more_bytes_than_allowed_or_announced_are_refused_and_not_kept(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(PolicyRefused) as caught:
        asyncio.run(fetch(Shelf(), tmp_path, **options))
    assert caught.value.reason == "download_too_large" and not list(tmp_path.iterdir())


def test_pruning_keeps_what_was_used_last_and_what_must_stay(tmp_path: Path) -> None:
    import os

    for age, name in enumerate(("new", "middle", "old", "needed")):
        (tmp_path / name).write_bytes(b"x" * 100)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    cache = BlobCache(tmp_path, Link("http://coordinator"))
    cache.prune(keep=frozenset({"needed"}), bytes_kept=250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["middle", "needed", "new"]


class Desk:
    """Takes one update as a coordinator does. Loses the answers whose numbers are in ``lose``."""

    def __init__(self, *, lose: tuple[int, ...] = (), damage: int = 0) -> None:
        self.held = b""
        self.accepted: bytes | None = None
        self.calls: list[tuple[str, str]] = []
        self.lose = lose
        self.damage = damage

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.calls.append((request.method, request.headers.get("Upload-Offset", "")))
        answer = self.answer(request)
        if len(self.calls) in self.lose:
            raise httpx.ReadError("lost", request=request)
        return answer

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "HEAD":
            return httpx.Response(200, headers={"Upload-Offset": str(len(self.accepted or self.held))})
        digest = request.headers["Repr-Digest"]
        if self.accepted is not None:
            same = digest == f"sha-256=:{base64.b64encode(hashlib.sha256(self.accepted).digest()).decode()}:"
            if not same:
                return httpx.Response(409, json={"code": "task_finished"})
            return httpx.Response(200, json={"state": "already", "sha256": sha256_hex(self.accepted)})
        offset = int(request.headers["Upload-Offset"])
        if offset not in (0, len(self.held)):
            headers = {"Upload-Offset": str(len(self.held))}
            return httpx.Response(409, json={"code": "offset_mismatch"}, headers=headers)
        self.held = self.held[:offset] + request.content
        if len(self.held) < int(request.headers["Upload-Length"]):
            return httpx.Response(204, headers={"Upload-Offset": str(len(self.held))})
        if self.damage:
            self.damage -= 1
            self.held = b""
            return httpx.Response(422, json={"code": "digest_mismatch"}, headers={"Upload-Offset": "0"})
        self.accepted = self.held
        return httpx.Response(200, json={"state": "accepted", "sha256": sha256_hex(self.held)})


async def send(desk: Desk, *, resume: bool) -> str:
    link = Link("http://coordinator", transport=httpx.MockTransport(desk))
    try:
        signed = SignedLink(link, key=SigningKey.from_seed(b"d" * 32), device_id="dev")
        return (await upload(signed, TASK, BLOB, resume=resume, piece=3000)).state
    finally:
        await link.close()


def test_a_fresh_upload_goes_in_pieces_without_asking_first() -> None:
    desk = Desk()
    assert asyncio.run(send(desk, resume=False)) == "accepted"
    assert desk.accepted == BLOB
    assert desk.calls == [("PATCH", "0"), ("PATCH", "3000"), ("PATCH", "6000"), ("PATCH", "9000")]


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
def test_an_upload_broken_off_anywhere_is_resumed_and_counts_once(lost: int) -> None:
    desk = Desk(lose=(lost,))
    with pytest.raises(Unreachable):
        asyncio.run(send(desk, resume=False))
    sent_before = len(desk.held)
    state = asyncio.run(send(desk, resume=True))
    assert desk.accepted == BLOB and state == ("already" if lost == 4 else "accepted")
    first = next(offset for method, offset in desk.calls[lost:] if method == "PATCH")
    # Of an update that is there whole nothing is sent again: an empty part asks for the receipt.
    assert first == str(sent_before)


def test_a_refused_offset_is_taken_from_the_coordinator() -> None:
    desk = Desk()
    desk.held = BLOB[:3000]
    desk.calls.clear()

    async def work() -> str:
        link = Link("http://coordinator", transport=httpx.MockTransport(desk))
        signed = SignedLink(link, key=SigningKey.from_seed(b"d" * 32), device_id="dev")
        return (await upload(signed, TASK, BLOB, resume=True, piece=3000)).state

    assert asyncio.run(work()) == "accepted" and desk.accepted == BLOB


def test_an_upload_that_arrives_damaged_is_sent_again_but_not_for_ever() -> None:
    assert asyncio.run(send(Desk(damage=2), resume=False)) == "accepted"
    desk = Desk(damage=9)
    with pytest.raises(RemoteError) as caught:
        asyncio.run(send(desk, resume=False))
    assert caught.value.reason == "digest_mismatch" and desk.damage == 6
