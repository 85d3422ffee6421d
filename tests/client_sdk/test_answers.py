"""A coordinator that answers without end, or with little that becomes a great deal: a client takes what it may take."""

import asyncio
import resource
import threading
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import zstandard

from coterie.client_sdk.control.sse import Message, messages
from coterie.client_sdk.device.blobs import BlobCache
from coterie.client_sdk.http import ANSWER_BYTES, PROBLEM_BYTES, Link
from coterie.errors import CoterieError, RemoteError
from coterie.protocol.canonical import sha256_hex

SMALL = 1 << 20
GROWTH = 300 << 20


def bomb() -> bytes:
    """A few kilobytes of zstd that stand for two gigabytes of zeros."""
    maker = zstandard.ZstdCompressor(level=1).compressobj()
    return b"".join([*(maker.compress(bytes(1 << 24)) for _ in range(128)), maker.flush()])


BOMB = bomb()
ANSWERS: dict[str, tuple[dict[str, str], bytes | None]] = {
    "/bomb": ({"Content-Encoding": "zstd", "Content-Length": str(len(BOMB))}, BOMB),
    "/endless": ({}, None),
    "/gzip": ({"Content-Encoding": "gzip", "Content-Length": "3"}, b"abc"),
    "/garbage": ({"Content-Encoding": "zstd", "Content-Length": "40"}, b"x" * 40),
    "/short": ({"Content-Encoding": "zstd", "Content-Length": "20"}, BOMB[:20]),
}


class _Liar(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, _, status = self.path.partition("?")
        headers, body = ANSWERS[path if path in ANSWERS else "/bomb" if "blobs/b" in path else "/endless"]
        self.send_response(int(status or 200))
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            if body is not None:
                self.wfile.write(body)
                return
            while True:
                self.wfile.write(b'{"code": "x", ' + b" " * (1 << 16))
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextmanager
def liar() -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Liar)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


async def _code(url: str, target: str) -> str:
    link = Link(url)
    try:
        await link.request("GET", target)
    except CoterieError as error:
        return error.reason
    finally:
        await link.close()
    return ""


def peak() -> int:
    """The most memory that this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/bomb", "answer_too_large"),
        ("/endless", "answer_too_large"),
        ("/bomb?500", "answer_too_large"),
        ("/endless?422", "answer_too_large"),
        ("/gzip", "answer_encoding"),
        ("/garbage", "answer_encoding"),
        ("/short", "answer_encoding"),
    ],
)
def test_an_answer_ends_where_the_client_says(target: str, code: str) -> None:
    before = peak()
    with liar() as url:
        assert asyncio.run(_code(url, target)) == code
    assert peak() - before < max(ANSWER_BYTES, PROBLEM_BYTES) * 3


@pytest.mark.parametrize("line", [b"data: " + b"x" * 4096, b"data: x" * 512 + b"\n"])
def test_an_event_without_end_ends_the_stream(line: bytes) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield line

    async def first() -> Message:
        return await anext(messages(endless()))

    with pytest.raises(RemoteError) as caught:
        asyncio.run(first())
    assert caught.value.reason == "answer_too_large"


@pytest.mark.parametrize("blob", ["b" * 64, "e" * 64])
def test_a_blob_ends_at_the_size_that_was_signed(tmp_path: Path, blob: str) -> None:
    async def fetched(url: str) -> str:
        link = Link(url)
        try:
            await BlobCache(tmp_path, link).fetch(blob, limit=GROWTH, size=SMALL)
        except CoterieError as error:
            return error.reason
        finally:
            await link.close()
        return ""

    before = peak()
    with liar() as url:
        assert asyncio.run(fetched(url)) == "download_too_large"
    assert peak() - before < GROWTH
    assert not list(tmp_path.iterdir())


def test_what_is_compressed_comes_as_it_was(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40_000
    packed = zstandard.compress(data)
    ANSWERS[f"/v1/blobs/{sha256_hex(data)}"] = (
        {"Content-Encoding": "zstd", "Content-Length": str(len(packed))},
        packed,
    )

    async def fetched(url: str) -> bytes:
        link = Link(url)
        try:
            return await BlobCache(tmp_path, link).fetch(sha256_hex(data), limit=len(data))
        finally:
            await link.close()

    with liar() as url:
        assert asyncio.run(fetched(url)) == data
