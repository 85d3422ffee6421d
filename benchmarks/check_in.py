"""What a check-in costs the coordinator, beside a bare FastAPI route on the same server.

    python benchmarks/check_in.py [--json] [--devices 16] [--seconds 4]

Four cases, each against a process of its own on the loopback interface: `bare`, a FastAPI route that reads and answers
the messages of a check-in and does nothing else; `idle`, no experiment; `running`, an experiment whose round has no
task left; `offered`, an experiment with tasks for which nobody who asks is eligible. processor_ms is the coordinator's
own processor time for a check-in, rate the check-ins a second that a closed loop of all devices reached (the load
generator needs a core of its own). Each case prints two lines (see lines.py): check-ins for each second of the
processor, beside those of `bare`; and the 99th percentile of the latency at half of that rate.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from lines import Budget, Line, Peer, at_least, at_most, show

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.client_sdk.control.client import ControlClient
from coterie.client_sdk.control.submission import Submission, send
from coterie.protocol.canonical import canonical_json, sha256_hex
from coterie.protocol.device import CheckIn, EnrolRequest
from coterie.protocol.http_signatures import RequestHead, content_digest, sign_request
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.protocol.signing import SigningKey

CASES = ("bare", "idle", "running", "offered")
# Of what a bare route does with the same processor time; and while an experiment runs, milliseconds at half the rate.
BUDGETS: dict[str, Budget] = {
    "idle": at_least(0.5, "ratio"),
    "running": at_least(0.3, "ratio"),
    "offered": at_least(0.3, "ratio"),
}
LATENCY_BUDGETS: dict[str, Budget] = {"running": at_most(50.0), "offered": at_most(50.0)}
PATH = "/v1/device/check-in"
SCHEMA = DataSchema((Feature(name="x", shape=(1,)),), Label(name="y", low=0, high=1))
TICKS = os.sysconf("SC_CLK_TCK")

_BARE = """
import asyncio, json, socket
import uvicorn
from fastapi import FastAPI
from coterie.protocol.device import CheckIn, CheckInResponse, RetryWindow

app = FastAPI()
window = RetryWindow(min_ms=800, max_ms=1200)

@app.post("/v1/device/check-in")
async def check_in(body: CheckIn) -> CheckInResponse:
    return CheckInResponse(retry_if_accepted=window, retry_if_rejected=window)

bound = socket.socket(proto=socket.IPPROTO_TCP)
bound.bind(("127.0.0.1", 0))
bound.listen(64)
print(json.dumps({"url": f"http://127.0.0.1:{bound.getsockname()[1]}"}), flush=True)
uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")).run([bound])
"""

_COORDINATOR = """
import json, sys
from pathlib import Path
from coterie.server.serve import serve
from coterie.server.settings import Settings

def ready(started):
    print(json.dumps({"url": started.url, "token": started.admin_token_file.read_text().strip()}), flush=True)

serve(Settings(folder=Path(sys.argv[1]), port=0, log_level="error", prestart=False), ready)
"""


@dataclass
class Device:
    """One connection that is kept, and what it signs with; no key for a bare route."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    key: SigningKey | None
    id: str = ""
    nonce: str = "none-yet-but-long-enough"

    async def check_in(self, body: bytes) -> dict[str, Any]:
        """Ask once; the answer."""
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        if self.key is not None:
            signed = RequestHead("POST", "x", PATH, "", {"content-digest": content_digest(sha256_hex(body))})
            fields = sign_request(self.key, signed, device=self.id, nonce=self.nonce)
            head += "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.writer.write(head.encode() + b"\r\n" + body)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        content = await self.reader.readexactly(int(headers["content-length"]))
        self.nonce = next((line.split(": ")[1] for line in lines if line.lower().startswith("coterie-nonce")), "")
        if " 200 " not in lines[0]:
            raise RuntimeError(f"{lines[0]}: {content.decode()}")
        return json.loads(content)


@contextmanager
def serving(case: str, folder: str) -> Generator[tuple[int, dict[str, str]]]:
    """The server of a case: its process and what it printed."""
    command = [sys.executable, "-c", _BARE] if case == "bare" else [sys.executable, "-c", _COORDINATOR, folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.pid, json.loads(process.stdout.readline() if process.stdout else "{}")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def processor_s(pid: int) -> float:
    """The processor time that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def enrolled(url: str, token: str, count: int) -> list[tuple[SigningKey, str, str]]:
    """Keys, ids and first nonces of devices that joined."""
    import httpx

    found: list[tuple[SigningKey, str, str]] = []
    async with httpx.AsyncClient(base_url=url) as http:
        for _ in range(count):
            key = SigningKey.generate()
            wanted = EnrolRequest(public_key=key.public, schema_digest=SCHEMA.digest)
            answer = await http.post(
                "/v1/device/enrol",
                json=wanted.model_dump(mode="json"),
                headers={"Authorization": f"Bearer {token}"},
            )
            answer.raise_for_status()
            found.append((key, answer.json()["device_id"], answer.json()["nonce"]))
    return found


async def joined(case: str, url: str, admin: str, count: int) -> list[tuple[SigningKey | None, str, str]]:
    """Prepare a case: its population, its experiment, its devices."""
    if case == "bare":
        return [(None, "", "")] * count
    control = ControlClient(url, token=admin)
    # Whoever asks tells nothing of its data, so nobody is eligible where a round wants a number of examples.
    least = 10 if case == "offered" else None
    wanted = Experiment(
        name="check-in",
        model=ExternalModel({"weights": (4,)}),
        schema=SCHEMA,
        holdout=0.0,
        initial={"weights": np.zeros(4, np.float32)},
        rounds=RoundPolicy(rounds=5, cohort=2, deadline_s=3600, lease_s=3600, evaluate_every=0, min_examples=least),
        secure_aggregation=False,
    )
    view = await send(control, Submission(experiment=wanted, key=SigningKey.generate()))
    token = (await control.enrolment_token(view.population)).token
    if case == "idle":
        await control.stop(view.id)
    found = await enrolled(url, token, count + 8)
    await control.close()
    return list(found)


async def load(devices: list[Device], body: bytes, seconds: float) -> tuple[int, list[float]]:
    """Check in as fast as all devices can; how often, and how long each took."""
    latencies: list[float] = []
    until = time.perf_counter() + seconds

    async def one(device: Device) -> None:
        while (begun := time.perf_counter()) < until:
            await device.check_in(body)
            latencies.append(time.perf_counter() - begun)

    await asyncio.gather(*(one(device) for device in devices))
    return len(latencies), latencies


async def paced(devices: list[Device], body: bytes, seconds: float, rate: float) -> list[float]:
    """Check in at a rate, each device in its turn, whether the answers before have come or not; how long each took
    from the moment at which it was due.
    """
    latencies: list[float] = []
    begun = time.perf_counter()

    async def one(device: Device, number: int) -> None:
        for turn in range(number, int(rate * seconds), len(devices)):
            due = begun + turn / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await device.check_in(body)
            latencies.append(time.perf_counter() - due)

    await asyncio.gather(*(one(device, number) for number, device in enumerate(devices)))
    return latencies


async def measure(case: str, pid: int, started: dict[str, str], count: int, seconds: float) -> tuple[Line, Line]:
    """One case: check-ins for each second of the processor, and the latency at half the rate."""
    address = urlsplit(started["url"])
    body = canonical_json(CheckIn().model_dump(mode="json"))
    devices: list[Device] = []
    for key, identifier, nonce in await joined(case, started["url"], started.get("token", ""), count):
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        devices.append(Device(reader, writer, key, identifier, nonce))
    # The first ones take what tasks there are, and hold them.
    first = [await device.check_in(body) for device in devices]
    asking = [device for device, answer in zip(devices, first, strict=True) if answer["task"] is None][:count]
    await load(asking, body, 1.0)
    before, wall = processor_s(pid), time.perf_counter()
    done, _ = await load(asking, body, seconds)
    spent, wall = processor_s(pid) - before, time.perf_counter() - wall
    late = sorted(await paced(asking, body, seconds, done / wall / 2))
    for device in devices:
        device.writer.close()
    details = {"check_ins": done, "processor_ms": 1000 * spent / done, "rate": done / wall}
    late_ms = 1000 * late[int(0.99 * len(late))]
    # A clock of hundredths of a second may have seen nothing of a short run.
    speed = done / spent if spent else None
    return (
        Line(case, speed, "check-ins a second of the processor", budget=BUDGETS.get(case), details=details),
        Line(f"{case}, p99 at half the rate", late_ms, "ms", budget=LATENCY_BUDGETS.get(case)),
    )


def main() -> None:
    """Run every case and print its lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--devices", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--cases", choices=CASES, nargs="+", default=list(CASES))
    chosen = parser.parse_args()
    bare: Peer | None = None
    for case in chosen.cases:
        with (
            tempfile.TemporaryDirectory(prefix="coterie-benchmark-") as folder,
            serving(case, f"{folder}/server") as (pid, started),
        ):
            speed, latency = asyncio.run(measure(case, pid, started, chosen.devices, chosen.seconds))
        show(replace(speed, peer=bare), as_json=chosen.json)
        show(latency, as_json=chosen.json)
        if case == "bare":
            bare = Peer(case, speed.figure)


if __name__ == "__main__":
    main()
