"""Blobs: what was put is what is got, for ever, in whole or in part; and nothing that is not meant to be had."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from server_kit import Opener, Operator, fleet, sha256, update

from coterie.protocol.delta import decode_delta
from coterie.protocol.tensors import encode_tensors
from coterie.server.device.blobs import accepts_zstd
from coterie.server.downloads.deltas import WAITING, Deltas
from coterie.server.downloads.ranges import ByteRange, Unsatisfiable, parse_range
from coterie.server.faults import CoordinatorFaults
from coterie.server.store.blobs import BlobStore, in_one
from coterie.server.store.objects import open_objects
from coterie.server.worker.workers import Workers

DATA = bytes(range(256)) * 20
PLAIN = {"Accept-Encoding": "identity"}


def with_operator(coordinator: Opener, check: Callable[[Operator], Awaitable[None]], **changes: object) -> None:
    """Run a check against a fresh coordinator."""

    async def work() -> None:
        async with coordinator(**changes) as operator:
            await check(operator)

    asyncio.run(work())


def test_a_blob_comes_back_with_its_digest_as_tag(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        url = f"/v1/blobs/{(await operator.put(DATA, 'graph')).sha256}"
        answer = await operator.http.get(url, headers=PLAIN)
        assert (answer.content, answer.headers["ETag"]) == (DATA, f'"{sha256(DATA)}"')
        assert "immutable" in answer.headers["Cache-Control"]
        head = await operator.http.head(url, headers=PLAIN)
        assert (head.headers["Content-Length"], head.content) == (str(len(DATA)), b"")
        known = await operator.http.get(url, headers={"If-None-Match": f'W/"x", "{sha256(DATA)}"'})
        assert (known.status_code, known.content) == (304, b"")

    with_operator(coordinator, check)


def test_what_was_received_holds_no_file_open(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        await operator.put(DATA, "graph")
        before = len(os.listdir("/proc/self/fd"))
        for number in range(20):
            await operator.put(DATA + bytes([number]), "graph")
        assert len(os.listdir("/proc/self/fd")) < before + 10

    with_operator(coordinator, check)


def test_ranges(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        url = f"/v1/blobs/{(await operator.put(DATA, 'model')).sha256}"
        for text, expected in (("bytes=10-19", DATA[10:20]), ("bytes=5000-", DATA[5000:]), ("bytes=-7", DATA[-7:])):
            answer = await operator.http.get(url, headers={"Range": text})
            assert (answer.status_code, answer.content) == (206, expected)
            assert answer.headers["Content-Range"].endswith(f"/{len(DATA)}")
        beyond = await operator.http.get(url, headers={"Range": f"bytes={len(DATA)}-"})
        assert (beyond.status_code, beyond.headers["Content-Range"]) == (416, f"bytes */{len(DATA)}")
        other = await operator.http.get(url, headers={**PLAIN, "Range": "bytes=0-1", "If-Range": '"another"'})
        assert (other.status_code, other.content) == (200, DATA)

    with_operator(coordinator, check)


def test_zstd_where_it_is_accepted_and_pays(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        url = f"/v1/blobs/{(await operator.put(DATA, 'graph')).sha256}"
        async with operator.http.stream("GET", url, headers={"Accept-Encoding": "gzip, zstd"}) as answer:
            raw = b"".join([chunk async for chunk in answer.aiter_raw()])
        assert answer.headers["Content-Encoding"] == "zstd" and len(raw) < len(DATA) / 2
        assert zstandard.ZstdDecompressor().decompressobj().decompress(raw) == DATA
        assert answer.headers["ETag"] != f'"{sha256(DATA)}"'
        noise = b"".join(sha256(bytes([i])).encode() for i in range(64))
        noise = bytes.fromhex(noise.decode())
        url = f"/v1/blobs/{(await operator.put(noise, 'model')).sha256}"
        assert "Content-Encoding" not in (await operator.http.get(url, headers={"Accept-Encoding": "zstd"})).headers

    with_operator(coordinator, check)


def test_only_what_is_public_is_served(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        private = await operator.put(b"rows of the coordinator", "evaluation")
        assert (await operator.http.get(f"/v1/blobs/{private.sha256}")).status_code == 404
        token = await operator.population()
        one, _ = await fleet(operator, token, 2)
        await operator.experiment(rounds=1)
        task = await one.task()
        data = update(task)
        await one.upload(task, data)
        answer = await operator.http.get(f"/v1/blobs/{sha256(data)}")
        assert (answer.status_code, answer.json()["code"]) == (404, "blob_unknown")

    with_operator(coordinator, check)


def test_a_blob_under_a_wrong_name_or_over_the_limit_is_refused(coordinator: Opener) -> None:
    async def check(operator: Operator) -> None:
        wrong = await operator.call("PUT", f"/v1/blobs/{'0' * 64}?kind=graph", content=DATA)
        assert (wrong.status_code, wrong.json()["code"]) == (422, "digest_mismatch")
        large = await operator.call("PUT", f"/v1/blobs/{'0' * 64}?kind=graph", content=bytes(6000))
        assert (large.status_code, large.json()["code"]) == (413, "too_large")
        kindless = await operator.call("PUT", f"/v1/blobs/{sha256(DATA)}", content=DATA)
        assert (kindless.status_code, kindless.json()["code"]) == (422, "request_invalid")
        blobs = operator.app.state.coordinator.storage.blobs
        assert await blobs.stored("blobs") == [] and list(blobs.scratch.iterdir()) == []
        await operator.put(DATA, "graph")
        again = await operator.call("PUT", f"/v1/blobs/{sha256(DATA)}?kind=graph", content=DATA)
        assert again.status_code == 200

    with_operator(coordinator, check, blob_limit=5500)


@given(st.binary(min_size=1, max_size=50), st.integers(0, 60), st.integers(0, 60))
def test_a_range_is_what_slicing_gives(data: bytes, first: int, last: int) -> None:
    try:
        found = parse_range(f"bytes={first}-{last}", len(data))
    except Unsatisfiable:
        assert first >= len(data)
        return
    if found is None:
        assert last < first
        return
    assert data[found.start : found.stop] == data[first : last + 1] != b""


@pytest.mark.parametrize("digits", ["9" * 19, "9" * 5000])
def test_a_range_of_thousands_of_digits_is_past_every_blob(digits: str) -> None:
    with pytest.raises(Unsatisfiable):
        parse_range(f"bytes={digits}-", 10)
    assert parse_range(f"bytes=2-{digits}", 10) == ByteRange(2, 10)
    assert parse_range(f"bytes=-{digits}", 10) == ByteRange(0, 10)
    assert parse_range(f"bytes={'0' * 5000}3-4", 10) == ByteRange(3, 5)


@given(st.text(max_size=30))
def test_no_range_header_breaks_the_parser(text: str) -> None:
    try:
        found = parse_range(text, 10)
    except Unsatisfiable:
        return
    assert found is None or 0 <= found.start < found.stop <= 10


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("zstd", True),
        ("gzip, zstd;q=0.5", True),
        ("zstd;q=0", False),
        ("gzip", False),
        ("", False),
        ("identity, ZSTD", True),
    ],
)
def test_accept_encoding(header: str, accepted: bool) -> None:
    assert accepts_zstd(header) is accepted


def test_deltas_are_made_by_a_worker_to_what_is_handed_out_and_few_wait(tmp_path: Path) -> None:
    files = [encode_tensors({"w": np.full(4000, 1 + step / 1000, np.float32)}) for step in range(2 * WAITING)]
    names = [sha256(file) for file in files]

    async def work() -> None:
        blobs = BlobStore(open_objects(tmp_path.as_uri()), tmp_path, CoordinatorFaults())
        for name, file in zip(names, files, strict=True):
            await blobs.put("blobs", name, in_one(file), point="result")
        deltas = Deltas(blobs, Workers(attempts=1, timeout_s=60, niceness=10), lambda name: name == names[0])
        try:
            size = len(files[0])
            assert await deltas.delta_file(names[0], names[1], size) is None
            assert await deltas.delta_file("0" * 64, names[0], size) is None
            asked = [deltas.delta_file(held, names[0], size) for held in names[1:]]
            made = [path for path in await asyncio.gather(*asked) if path is not None]
            assert len(made) == WAITING
            for held, path in zip(files[1:], made, strict=False):
                assert decode_delta(held, path.read_bytes()) == files[0]
            assert await deltas.delta_file(names[-1], names[0], size)
        finally:
            await deltas.close()

    asyncio.run(work())
