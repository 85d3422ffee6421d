"""Strangers on the network: what they may open, leave half-said and repeat, while others are served."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from test_serve import process

from coterie.server.connections import network_of
from coterie.server.logs import BURST, PERIOD_S, Sparing
from tests.empty_database import prepare
from tests.patience import patience


@contextlib.contextmanager
def serving(
    folder: Path, errors: Path, *, open_files: int | None = None, **settings: Any
) -> Generator[tuple[str, str]]:
    """A coordinator process: its URL and its administrator's token; what it logs lies in ``errors``.

    open_files: how many it may have.
    """
    saved = os.dup(2)
    with errors.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            limits: dict[str, Any] = {} if open_files is None else {"RLIMIT_NOFILE": open_files}
            entered = process({"folder": str(prepare(folder)), "log_level": "info", **settings}, **limits)
            _, (url, token) = entered.__enter__()
        finally:
            os.dup2(saved, 2)
            os.close(saved)
    try:
        yield url, token
    finally:
        entered.__exit__(None, None, None)


def connect(url: str) -> socket.socket:
    place = urlsplit(url)
    made = socket.create_connection((place.hostname or "", place.port or 0), timeout=patience(10))
    return made


def answered(stranger: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := stranger.recv(4096):
            found += data
    return found


@pytest.mark.parametrize("capped", [True, False])
def test_silent_connections_shut_nobody_out_and_fill_no_log(tmp_path: Path, capped: bool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    log = tmp_path / "log"
    settings = {"max_connections": 200, "max_connections_per_address": 150} if capped else {}
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        with (
            serving(tmp_path / "server", log, open_files=600, **settings) as (url, _),
            contextlib.ExitStack() as stack,
        ):
            strangers = [stack.enter_context(connect(url)) for _ in range(1000)]
            for half in strangers[::2]:
                with contextlib.suppress(OSError):
                    half.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            begun, limit = time.monotonic(), patience(10)
            for _ in range(20):
                assert httpx.get(f"{url}/healthz", timeout=patience(10)).is_success
            assert time.monotonic() - begun < limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert log.stat().st_size < 100_000


def test_connections_that_asked_once_and_stay_make_room(tmp_path: Path) -> None:
    with serving(tmp_path / "server", tmp_path / "log", max_connections=40) as (url, _):
        with contextlib.ExitStack() as stack:
            for _ in range(120):
                stranger = stack.enter_context(connect(url))
                stranger.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert stranger.recv(4096).startswith(b"HTTP/1.1 200")
            for _ in range(10):
                assert httpx.get(f"{url}/healthz", timeout=patience(10)).is_success


def test_headers_that_never_end_end_the_connection(tmp_path: Path) -> None:
    with serving(tmp_path / "server", tmp_path / "log", header_timeout_s=0.5) as (url, _):
        with connect(url) as silent, connect(url) as half, connect(url) as second:
            half.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
            second.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            time.sleep(0.1)
            second.sendall(b"GET /healthz HTTP/1.1\r\nHost")
            assert answered(silent) == b"" and answered(half) == b""
            assert answered(second).count(b"HTTP/1.1 200") == 1


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, str]]:
    """A coordinator whom strangers cannot wear out, but for a body that stalls, which it waits for."""
    folder = tmp_path_factory.mktemp("strangers")
    with serving(folder / "server", folder / "log", body_stall_s=patience(60)) as served:
        yield served


def test_headers_without_end_are_refused(usual: tuple[str, str]) -> None:
    with connect(usual[0]) as endless:
        endless.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        begun, sent, limit = time.monotonic(), 0, patience(9)
        with pytest.raises(OSError, match="reset|Broken pipe"):
            while sent < 1 << 24:
                endless.sendall(b"X: " + b"y" * 4096 + b"\r\n")
                sent += 4096
        assert sent < 1 << 23 and time.monotonic() - begun < limit


@pytest.mark.parametrize(
    ("size", "parts", "wanted"),
    [(60_000, 1, b"HTTP/1.1 200"), (100_000, 1, b"HTTP/1.1 400"), (100_000, 40, b"HTTP/1.1 400")],
)
def test_headers_end_at_64_kib_however_they_are_sent(
    usual: tuple[str, str], size: int, parts: int, wanted: bytes
) -> None:
    whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: " + b"y" * size + b"\r\n\r\n"
    step = -(-len(whole) // parts)
    with connect(usual[0]) as wordy:
        with contextlib.suppress(OSError):
            for begin in range(0, len(whole), step):
                wordy.sendall(whole[begin : begin + step])
        assert answered(wordy).startswith(wanted)


def test_a_long_body_behind_short_headers_is_no_long_header(usual: tuple[str, str]) -> None:
    whole = b"POST /v1/populations HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 200000\r\n\r\n"
    with connect(usual[0]) as sender:
        sender.sendall(whole + b" " * 200_000)
        assert answered(sender).startswith(b"HTTP/1.1 401")


def test_a_body_that_says_it_is_too_long_is_refused_before_it_comes(usual: tuple[str, str]) -> None:
    url, token = usual
    head = "POST /v1/populations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    for length in ("99999999999999", str((1 << 20) + 1), "9" * 18):
        begun, limit = time.monotonic(), patience(5)
        with connect(url) as boaster:
            boaster.sendall(f"{head}Authorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n{{".encode())
            assert boaster.recv(4096).startswith(b"HTTP/1.1 413")
        assert time.monotonic() - begun < limit


AMBIGUOUS = {
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "two lengths": b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    "folded": b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n",
    "bare line feeds": b"GET /healthz HTTP/1.1\nHost: a\n\n",
    "one bare line feed": b"GET /healthz HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "chunks that are none": b"POST /v1/device/enrol HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "lengths that differ": b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 2\r\n\r\nabc",
}


def test_what_can_be_read_in_two_ways_is_refused_and_no_stranger_makes_a_traceback(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving(tmp_path / "server", log) as (url, token):
        for name, request in AMBIGUOUS.items():
            with connect(url) as stranger:
                stranger.sendall(request)
                said = answered(stranger)
            assert b"400 Bad Request" in said, name
        for number in range(50):
            with connect(url) as leaving:
                path = ("/v1/device/enrol", "/v1/populations", "/v1/device/check-in")[number % 3]
                bearer = f"Authorization: Bearer {token}\r\nSignature-Input: device=({number:032x}\r\n"
                head = f"POST {path} HTTP/1.1\r\nHost: a\r\n{bearer}Content-Length: 500\r\n\r\n{{"
                leaving.sendall(head.encode())
                time.sleep(0.005)
        with connect(url) as stranger:
            bearer = f"Authorization: Bearer {token}\r\n"
            head = f"POST /v1/populations HTTP/1.1\r\nHost: a\r\n{bearer}Transfer-Encoding: chunked\r\n\r\n"
            stranger.sendall(head.encode() + b"zz\r\n")
            answered(stranger)
        assert httpx.get(f"{url}/healthz", timeout=patience(10)).is_success
    text = log.read_text()
    assert "Traceback" not in text and "bug" not in text, text[:2000]
    assert len(text) < 20_000


def test_equal_errors_are_told_a_few_times_and_then_counted() -> None:
    now = [0.0]
    spare = Sparing(lambda: now[0])
    kept = [spare.left_out(("one",)) for _ in range(100)]
    assert kept == [0] * BURST + [None] * (100 - BURST)
    assert spare.left_out(("two",)) == 0
    now[0] = PERIOD_S
    assert [spare.left_out(("one",)), spare.left_out(("one",))] == [100 - BURST, 0]
    for number in range(5000):
        assert spare.left_out((number,)) == 0


@pytest.mark.parametrize(
    ("host", "network"),
    [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"), ("", "")],
)
def test_one_address_is_one_client(host: str, network: str) -> None:
    assert network_of(host) == network


def test_a_process_without_these_limits_still_starts() -> None:
    hidden = "import sys; sys.modules['resource'] = None; "
    code = hidden + "from coterie.server import connections; print(connections.room_for(7))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "7\n"
