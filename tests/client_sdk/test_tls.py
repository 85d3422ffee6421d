"""A coordinator with a certificate of its own: device and researcher reach it with the certificate, and only so."""

import asyncio
import datetime
import ipaddress
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from sdk_kit import RESEARCHER, coordinator_process, experiment, hear, infer, rows

from coterie.client_sdk import Control, Device
from coterie.errors import Unreachable
from coterie.protocol.rounds import RoundPolicy
from tests.patience import patience

ONE = RoundPolicy(rounds=1, cohort=1, evaluate_every=0)


def own_certificate(folder: Path, days_ahead: int = 0) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1 for one day, and its key. days_ahead: of this machine's clock."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coordinator")])
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days_ahead)
    until = now + datetime.timedelta(1)
    built = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, until)
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate, secret = folder / "cert.pem", folder / "key.pem"
    signed = built.add_extension(addresses, critical=False).sign(key, hashes.SHA256())
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return certificate, secret


def test_an_experiment_over_tls_with_a_certificate_of_ones_own(tmp_path: Path) -> None:
    certificate, secret = own_certificate(tmp_path)
    with coordinator_process(tmp_path, tls_cert=str(certificate), tls_key=str(secret)) as coordinator:
        assert coordinator.url.startswith("https://127.0.0.1:")
        with pytest.raises(httpx.TransportError):
            httpx.get(coordinator.url.replace("https", "http") + "/healthz")
        with Control(coordinator.url, token=coordinator.token, ca=certificate) as control:
            run = control.submit(experiment(), key=RESEARCHER)
            token = control.enrolment_token("tiny").token
            trains_only_with_trust(coordinator.url, token, certificate, tmp_path)
            assert [(row.state, row.accepted) for row in run.wait(patience(30)).rounds] == [("committed", 1)] * 2
            model = run.download(tmp_path / "infer.onnx")
        assert np.isfinite(infer(model, {"batch/x": rows(1)["x"]})).all()
        with (
            Control(coordinator.url, token=coordinator.token) as stranger,
            pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED") as caught,
        ):
            stranger.populations()
        assert caught.value.hint is not None and "--ca" in caught.value.hint


@pytest.mark.parametrize("days_ahead", [-30, 30])
def test_who_has_a_wrong_clock_is_told_to_look_at_it(tmp_path: Path, days_ahead: int) -> None:
    certificate, secret = own_certificate(tmp_path, days_ahead)
    with (
        coordinator_process(tmp_path, tls_cert=str(certificate), tls_key=str(secret)) as coordinator,
        Control(coordinator.url, token=coordinator.token, ca=certificate) as control,
        pytest.raises(Unreachable, match="certificate (has expired|is not yet valid)") as caught,
    ):
        control.populations()
    assert caught.value.hint is not None and "this machine's clock" in caught.value.hint


def trains_only_with_trust(url: str, token: str, certificate: Path, folder: Path) -> None:
    events: list[dict[str, Any]] = []
    told = threading.Event()

    def hears(event: Any) -> None:
        hear(events)(event)
        told.set()

    with Device(url, data=rows(), token=token, folder=folder / "wary", on_event=hears) as wary:
        thread = threading.Thread(target=wary.run)
        thread.start()
        assert told.wait(patience(60))
        wary.stop()
        thread.join(patience(60))
    assert events[0]["code"] == "unreachable" and "--ca" in events[0]["hint"]
    assert "joined" not in {event["event"] for event in events}
    with Device(url, data=rows(), token=token, folder=folder / "device", ca=certificate) as device:
        summary = device.run(rounds=2)
    assert (summary.trained, summary.counted) == (2, 2)


def test_a_listener_on_the_network_reads_nothing_of_a_round(tmp_path: Path) -> None:
    """Every byte between a device and its coordinator passes a listener, who finds no token, no name and no number."""
    certificate, secret = own_certificate(tmp_path)
    with coordinator_process(tmp_path, tls_cert=str(certificate), tls_key=str(secret)) as coordinator:
        with Control(coordinator.url, token=coordinator.token, ca=certificate) as control:
            run = control.submit(experiment(rounds=ONE), key=RESEARCHER)
            token = control.enrolment_token("tiny").token
            with listening(int(coordinator.url.rpartition(":")[2])) as (port, heard):
                with Device(
                    f"https://127.0.0.1:{port}", data=rows(), folder=tmp_path / "device", token=token, ca=certificate
                ) as device:
                    device.run(rounds=1)
                    (entry, *_) = device.history()
            model = run.wait(patience(30)).rounds[0]
    passed = b"".join(heard)
    assert len(passed) > 10_000
    for text in (token, entry.task, entry.experiment, model.model or "", "safetensors", "check-in", "float32"):
        assert text
        assert text.encode() not in passed


@contextmanager
def listening(port: int) -> Generator[tuple[int, list[bytes]], None, None]:
    """A port that passes everything on to ``port``, both ways, and what passed."""
    heard: list[bytes] = []

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                heard.append(data)
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    handlers = set[asyncio.Task[Any] | None]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(passed_on(reader, back), passed_on(there, writer), return_exceptions=True)

    async def ended() -> None:
        """Connections that a side has left open would outlive the loop."""
        server.close()
        open_ones = [task for task in handlers if task is not None]
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)
        loop.stop()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(connected, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1], heard
    finally:
        asyncio.run_coroutine_threadsafe(ended(), loop)
        thread.join(patience(10))
        loop.close()
