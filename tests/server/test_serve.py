"""The coordinator as a process: its address, its signals, its worker, and a disk that is really full."""

import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_kit import Operator, fleet, sha256, update

from coterie.errors import ConfigurationError
from coterie.server.serve import bind, check_exposure
from coterie.server.settings import Settings
from coterie.server.worker.process import ALIVE, beat
from coterie.server.worker.workers import JobFailed, WorkerLost, Workers
from tests.patience import patience
from tests.prepared import Errors, Program, start

PROGRAM = Path(__file__).with_name("served_settings.py")


@contextmanager
def process(
    settings: dict[str, Any], *, own_worker: bool = False, **limits: int
) -> Generator[tuple[Program, Any], None, None]:
    """A coordinator process and the first line it printed; ended by its pid.

    own_worker: its worker is a child of it, and has its limits.
    limits: of the system, by their names in `resource`.
    """
    words = [
        json.dumps({"port": 0, "log_level": "error", **settings}),
        json.dumps({"own_worker": own_worker, **limits}),
    ]
    started = start(words, program=PROGRAM, cwd=Path.cwd(), env=os.environ, stderr=Errors.SHARED)
    assert started.stdout is not None
    try:
        yield started, json.loads(started.stdout.readline())
    finally:
        started.send_signal(signal.SIGTERM)
        started.communicate(timeout=patience(60))


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=str(port)) as caught:
            bind(Settings(folder=tmp_path, port=port))
        assert caught.value.reason == "port_in_use" and "--port" in (caught.value.hint or "")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_a_public_address_without_tls_is_refused(host: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_exposure(Settings(folder=tmp_path, host=host))
    assert caught.value.reason == "tls_required"
    check_exposure(Settings(folder=tmp_path, host=host, insecure=True))


@pytest.mark.parametrize("content", ["", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_files_that_are_no_identity_are_refused_by_name(content: str, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_text(content)
    key.write_text(content)
    with pytest.raises(ConfigurationError, match=r"cert\.pem.*key\.pem.*cannot be used") as caught:
        check_exposure(Settings(folder=tmp_path, tls_cert=certificate, tls_key=key))
    assert caught.value.hint is not None and "PEM" in caught.value.hint


def test_half_an_identity_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="both"):
        check_exposure(Settings(folder=tmp_path, tls_cert=tmp_path / "c"))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        check_exposure(Settings(folder=tmp_path, tls_cert=tmp_path / "c", tls_key=tmp_path / "k"))


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_PORT", "9999")
    monkeypatch.setenv("COTERIE_FOLDER", "/elsewhere")
    assert (Settings().port, Settings().folder, Settings(port=1).port) == (9999, Path("/elsewhere"), 1)


def test_start_serve_refuse_a_second_one_and_end_on_sigterm_with_a_stream_open(tmp_path: Path) -> None:
    folder = str(tmp_path / "state")
    with process({"folder": folder, "shutdown_s": 90.0}) as (first, (url, token)):
        assert (tmp_path / "state" / "admin.token").read_text().strip() == token
        with process({"folder": folder}) as (second, answer):
            assert second.wait(patience(60)) == 3
            assert answer["code"] == "folder_in_use" and str(first.pid) in answer["message"]
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.stream("GET", f"{url}/v1/events", headers=headers, timeout=patience(60)) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("retry:")
            started = time.monotonic()
            first.send_signal(signal.SIGTERM)
            with contextlib.suppress(httpx.TransportError):
                for _ in lines:
                    continue
        assert first.wait(patience(60)) == 0
        assert time.monotonic() - started < 45, "the stream was waited for"
    with process({"folder": folder}) as (_, (_, again)):
        assert again is None  # the token is made once


def test_how_long_a_stream_of_events_was_open_is_no_time_to_answer(tmp_path: Path) -> None:
    with process({"folder": str(tmp_path / "state"), "heartbeat_s": 0.25}) as (_, (url, token)):
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.stream("GET", f"{url}/v1/events", headers=headers, timeout=patience(60)) as stream:
            lines = stream.iter_lines()
            while next(lines) != ": heartbeat":
                continue
            time.sleep(1.5)
        until = time.monotonic() + patience(60)
        found: dict[str, float] = {}
        while not found and time.monotonic() < until:
            text = httpx.get(f"{url}/metrics", timeout=patience(60)).text
            found = {
                sample.name: sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.labels.get("route") == "/v1/events" and sample.name.endswith("seconds_sum")
            }
        assert found["coterie_wait_seconds_sum"] > 1.5
        assert found["coterie_request_seconds_sum"] < found["coterie_wait_seconds_sum"]


def drip(connection: socket.socket, seconds: float) -> str:
    """The answer to a body of which a byte comes ten times a second."""
    connection.settimeout(0.1)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(TimeoutError):
            return connection.recv(65_536).decode()
        connection.sendall(b" ")
    return ""


def test_a_body_that_stalls_is_given_up_and_a_stream_is_not(tmp_path: Path) -> None:
    with process({"folder": str(tmp_path / "state"), "body_stall_s": 0.5}) as (_, (url, token)):
        authority = url.removeprefix("http://")
        host, port = authority.split(":")
        head = f"Host: {authority}\r\nAuthorization: Bearer {token}\r\n"
        started = time.monotonic()
        with socket.create_connection((host, int(port)), timeout=patience(60)) as slow:
            slow.sendall(f"POST /v1/tokens HTTP/1.1\r\n{head}Content-Length: 100\r\n\r\n{{".encode())
            answer = slow.recv(65_536).decode()
        assert answer.startswith("HTTP/1.1 408") and "body_stalled" in answer
        assert 0.4 < time.monotonic() - started < 30  # and not the minute that is the default
        with socket.create_connection((host, int(port)), timeout=patience(60)) as dripping:
            dripping.sendall(f"POST /v1/tokens HTTP/1.1\r\n{head}Content-Length: 1000\r\n\r\n{{".encode())
            answer = drip(dripping, patience(30))
        assert answer.startswith("HTTP/1.1 408")
        with socket.create_connection((host, int(port)), timeout=patience(60)) as stream:
            stream.sendall(f"GET /v1/events HTTP/1.1\r\n{head}\r\n".encode())
            assert stream.recv(65_536).startswith(b"HTTP/1.1 200")
            time.sleep(1.0)  # twice the pause that a body may make
            stream.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                assert stream.recv(65_536) != b"", "the stream was ended"


def test_a_disk_that_is_really_full_loses_nothing(tmp_path: Path) -> None:
    """The process may write no file above a megabyte, which the system refuses as a full disk refuses: in the middle of
    a write.
    """

    async def work(url: str, token: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=patience(60)) as http:
            operator = Operator(http, token)
            (device,) = await fleet(operator, await operator.population(), 1)
            experiment = await operator.experiment(rounds=1, cohort=1)
            large = bytes(1 << 22)
            answer = await operator.call("PUT", f"/v1/blobs/{sha256(large)}?kind=graph", content=large)
            assert (answer.status_code, answer.json()["code"]) == (507, "storage_full")
            assert (await http.get(f"/v1/blobs/{sha256(large)}")).status_code == 404
            task = await device.task()
            assert (await device.upload(task, update(task))).json()["state"] == "accepted"
            await operator.until_round(experiment, 1, "committed")
            assert list((tmp_path / "state" / "blobs" / "scratch").iterdir()) == []

    with process({"folder": str(tmp_path / "state")}, own_worker=True, RLIMIT_FSIZE=1 << 20) as (_, (url, token)):
        asyncio.run(work(url, token))


def children(pid: int) -> list[int]:
    """The living children of a process."""
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def test_the_worker_ends_with_a_coordinator_that_is_killed(tmp_path: Path) -> None:
    with process({"folder": str(tmp_path / "state")}, own_worker=True) as (coordinator, _):
        deadline = time.monotonic() + patience(120)
        while not (workers := children(coordinator.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(workers) == 1
        coordinator.kill()
        coordinator.wait(patience(60))
        while Path(f"/proc/{workers[0]}").exists() and time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may end between the two looks
                state = Path(f"/proc/{workers[0]}/stat").read_text().rsplit(")", 1)[1].split()[0]
                if state == "Z":
                    break
            time.sleep(0.05)
        else:
            assert not Path(f"/proc/{workers[0]}").exists()


def test_a_worker_that_dies_is_replaced_and_one_that_refuses_is_believed(tmp_path: Path) -> None:
    async def work() -> None:
        # Other tests of this process may have left helpers of its own, such as the tracker of shared memory.
        others = set(children(os.getpid()))
        workers = Workers(attempts=2, timeout_s=30)
        await workers.start()
        (pid,) = set(children(os.getpid())) - others
        os.kill(pid, signal.SIGKILL)
        assert (await workers.run("warm", {}))["ready"]
        with pytest.raises(JobFailed, match="nowhere"):
            blobs = {"url": tmp_path.as_uri(), "scratch": str(tmp_path / "scratch")}
            await workers.run("aggregate", {"blobs": blobs, "manifest": "nowhere", "server_state": None, "updates": []})
        with pytest.raises(JobFailed, match="KeyError"):
            await workers.run("dance", {})
        await workers.close()
        assert set(children(os.getpid())) <= others

    asyncio.run(work())


@pytest.mark.usefixtures("own_workers")
def test_a_worker_that_is_stopped_is_replaced_long_before_its_job_may_end() -> None:
    async def work() -> None:
        others = set(children(os.getpid()))
        workers = Workers(attempts=2, timeout_s=600, silence_s=3)
        await workers.start()
        (pid,) = set(children(os.getpid())) - others
        os.kill(pid, signal.SIGSTOP)
        async with asyncio.timeout(patience(60)):
            assert (await workers.run("warm", {}))["ready"]
        assert pid not in children(os.getpid())
        await workers.close()

    asyncio.run(work())


def test_a_worker_at_work_says_that_it_lives() -> None:
    told = io.StringIO()
    done = threading.Event()
    beating = threading.Thread(target=beat, args=(told, done))
    beating.start()
    until = time.monotonic() + patience(30)
    while not told.getvalue() and time.monotonic() < until:
        time.sleep(0.05)
    done.set()
    beating.join()
    assert told.getvalue().encode() == ALIVE * len(told.getvalue()) != b""


def test_a_worker_that_hangs_is_given_up_after_its_attempts() -> None:
    async def work() -> None:
        workers = Workers(attempts=2, timeout_s=0.05)
        with pytest.raises(WorkerLost, match="died or hung"):
            await workers.run("warm", {})
        await workers.close()

    asyncio.run(work())
