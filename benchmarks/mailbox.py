"""What the mailbox of a session costs: an exchange beside a bare request, and the memory of a large message.

    python benchmarks/mailbox.py [--json] [--messages 200] [--payload 1024] [--gigabytes 1.0] [--times 3]

A coordinator and two parties, each a process of its own, on the loopback interface; everything as in production:
sealed, signed, synced to the disk. The parties send one another `messages` messages of `payload` bytes in turn.

bare request: the median time of a POST of as many bytes, with the same client, to a FastAPI route that reads the body
and does nothing else, in a process of its own, while the coordinator idles. signed_ms: of a signed request to the
coordinator that reads how the session stands. An exchange's figure: from the call of `send` in one party to the opened
bytes in the other, which waits for them, beside the bare request; p90_ms: nine of ten took no longer. What it adds to a
bare request has a budget (3 ms). acknowledged_ms: of the acknowledgement, for which nobody waits before using the
message. processor_ms: the processor time of each process for one exchange and its acknowledgement. synced_ms: of a
write of 4 KiB with fsync in the folder of the run: an exchange has several of them, one after the other.

A large message, of bytes that do not compress, passes once: send_s at its sender, with sealing it into the outbox;
receive_s at its recipient. For the coordinator, the sender and the recipient grown_mib is by how much the highest
resident memory while it passes (VmHWM, reset before) is above what the process had before; the largest of them has the
budget (64 MiB). peak_mib is that highest. Small messages have gone before, so that all code is loaded.

Every measurement prints its lines (see lines.py).
"""

import argparse
import asyncio
import hashlib
import json
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from lines import Line, Peer, at_most, show

from coterie.client_sdk.control.control import Control
from coterie.client_sdk.http import Link
from coterie.client_sdk.party.party import PartyClient
from coterie.client_sdk.party.pins import trust_first_use
from coterie.client_sdk.party.session import SessionClient
from coterie.protocol.session import PartyRole, SessionCreate

ADDED_BUDGET: Final = at_most(3.0)
MEMORY_BUDGET: Final = at_most(64.0)
ROLES: Final = ("sender", "recipient")
BLOCK: Final = 1 << 20
WARM: Final = 20
TICKS: Final = os.sysconf("SC_CLK_TCK")
STAMP: Final = struct.Struct(">d")

_BARE = """
import json, socket
import uvicorn
from fastapi import FastAPI, Request

app = FastAPI()

@app.post("/bare")
async def bare(request: Request) -> int:
    return len(await request.body())

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


@contextmanager
def serving(script: str, *arguments: str) -> Generator[tuple[int, dict[str, str]]]:
    """A server: its process and what it printed."""
    with subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.pid, json.loads(process.stdout.readline() if process.stdout else "{}")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def memory_mib(pid: int, field: str) -> float:
    """VmRSS or VmHWM of a process (Linux)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def processor_s(pid: int) -> float:
    """The processor time that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def forget_peak(pid: int) -> float:
    """Let VmHWM begin anew; what the process has now, in MiB."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory_mib(pid, "VmRSS")


def noise(size: int) -> Iterator[bytes]:
    """So many bytes, block by block, no two blocks alike."""
    block = os.urandom(BLOCK)
    for number in range(-(-size // BLOCK)):
        yield (number.to_bytes(8, "big") + block[8:])[: min(BLOCK, size - number * BLOCK)]


async def play(number: int, url: str, token: str, folder: Path, payload: int, pipe: Connection) -> None:
    """A party: joins, and does what it is told until it is told nothing more."""
    loop = asyncio.get_running_loop()
    party = PartyClient(folder, judge=trust_first_use)
    session = await party.join(url, token)
    other = ROLES[1 - number]
    pipe.send("joined")
    while (order := await loop.run_in_executor(None, pipe.recv))[0] != "end":
        what, count = order
        if what == "exchange":
            pipe.send(await exchange(session, other, count, payload, is_first=number == 0))
        elif what == "signed":
            pipe.send([await timed_ms(session.status()) for _ in range(count)])
        elif what == "send":
            begun = time.perf_counter()
            await session.send("large", other, noise(count))
            pipe.send(time.perf_counter() - begun)
        else:
            message = await session.receive("large", other)
            begun, digest, size = time.perf_counter(), hashlib.sha256(), 0
            async for chunk in message.chunks:
                digest.update(chunk)
                size += len(chunk)
            await session.acknowledge("large", other, message.sequence)
            pipe.send((time.perf_counter() - begun, size, digest.hexdigest()))
    await party.close()


async def exchange(
    session: SessionClient, other: str, count: int, payload: int, *, is_first: bool
) -> tuple[list[float], list[float]]:
    """Messages in turn. Milliseconds from `send` to the opened bytes of those that came in, and of acknowledging."""
    delivered: list[float] = []
    acknowledged: list[float] = []
    body = os.urandom(payload - STAMP.size)
    for _ in range(count):
        if is_first:
            await session.send("small", other, STAMP.pack(time.monotonic()) + body)
        message = await session.receive("small", other)
        read = await message.read()
        delivered.append(1000 * (time.monotonic() - STAMP.unpack(read[: STAMP.size])[0]))
        acknowledged.append(await timed_ms(session.acknowledge("small", other, message.sequence)))
        if not is_first:
            await session.send("small", other, STAMP.pack(time.monotonic()) + body)
    return delivered, acknowledged


async def timed_ms(work: Any) -> float:
    """How long it takes, in milliseconds."""
    begun = time.perf_counter()
    await work
    return 1000 * (time.perf_counter() - begun)


def start(number: int, url: str, token: str, folder: Path, payload: int, pipe: Connection) -> None:
    """A party's process."""
    asyncio.run(play(number, url, token, folder, payload, pipe))


async def bare_ms(url: str, count: int, payload: int) -> list[float]:
    """A bare request, so many times."""
    link = Link(url)
    body = os.urandom(payload)
    times = [await timed_ms(link.request("POST", "/bare", body=body)) for _ in range(count + WARM)]
    await link.close()
    return times[WARM:]


def synced_ms(folder: Path, count: int) -> list[float]:
    """A write of 4 KiB with fsync, so many times."""
    times: list[float] = []
    with (folder / "synced").open("wb") as file:
        for _ in range(count):
            begun = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            times.append(1000 * (time.perf_counter() - begun))
    return times


class Stage:
    """A coordinator with a session, and its two parties."""

    def __init__(self, folder: Path, pid: int, started: dict[str, str], payload: int) -> None:
        asked = SessionCreate(
            name="benchmark",
            roles=tuple(PartyRole(name=role, party=role.title()) for role in ROLES),
            stages=("small", "large"),
            message_limit=1 << 36,
            party_quota=1 << 36,
            session_quota=1 << 36,
        )
        with Control(started["url"], token=started["token"]) as control:
            tokens = control.make_session(asked).tokens
        context = get_context("spawn")
        self.coordinator = pid
        self.pipes: list[Connection] = []
        self.parties: list[Any] = []
        for number, role in enumerate(ROLES):
            near, far = context.Pipe()
            arguments = (number, started["url"], tokens[role], folder / role, payload, far)
            self.parties.append(context.Process(target=start, args=arguments))
            self.parties[-1].start()
            self.pipes.append(near)
        for pipe in self.pipes:
            pipe.recv()

    @property
    def pids(self) -> dict[str, int]:
        """Processes by what they are."""
        return {"coordinator": self.coordinator, **dict(zip(ROLES, (each.pid for each in self.parties), strict=True))}

    def tell(self, *orders: tuple[str, int]) -> list[Any]:
        """Give each party its order; what each says when it is done."""
        for pipe, order in zip(self.pipes, orders, strict=True):
            pipe.send(order)
        return [pipe.recv() for pipe in self.pipes]

    def close(self) -> None:
        """End both parties."""
        for pipe, process in zip(self.pipes, self.parties, strict=True):
            pipe.send(("end", 0))
            process.join(60)


def latency(stage: Stage, folder: Path, bare: str, count: int, payload: int) -> tuple[Line, Line]:
    """One measurement of exchanges, with its yardsticks."""
    stage.tell(("exchange", WARM), ("exchange", WARM))
    plain = statistics.median(asyncio.run(bare_ms(bare, count, payload)))
    before = {name: processor_s(pid) for name, pid in stage.pids.items()}
    told = stage.tell(("exchange", count), ("exchange", count))
    spent = {name: 1000 * (processor_s(pid) - before[name]) / 2 / count for name, pid in stage.pids.items()}
    delivered = [each for times, _ in told for each in times]
    middle = statistics.median(delivered)
    stage.pipes[0].send(("signed", count))
    signed = statistics.median(stage.pipes[0].recv())
    details = {
        "payload": payload,
        "messages": len(delivered),
        "p90_ms": sorted(delivered)[int(0.9 * len(delivered))],
        "acknowledged_ms": statistics.median(each for _, times in told for each in times),
        "signed_ms": signed,
        "synced_ms": statistics.median(synced_ms(folder, count)),
        "processor_ms": spent,
    }
    return (
        Line("exchange", middle, "ms", Peer("bare request", plain), details=details),
        Line("exchange, added to a bare request", middle - plain, "ms", budget=ADDED_BUDGET),
    )


def large(stage: Stage, size: int) -> tuple[Line, Line]:
    """One large message."""
    before = {name: forget_peak(pid) for name, pid in stage.pids.items()}
    for pipe, order in zip(stage.pipes, (("send", size), ("receive", size)), strict=True):
        pipe.send(order)
    sent_s = stage.pipes[0].recv()
    received_s, read, digest = stage.pipes[1].recv()
    peaks = {name: memory_mib(pid, "VmHWM") for name, pid in stage.pids.items()}
    grown = {name: peak - before[name] for name, peak in peaks.items()}
    speeds = {
        "bytes": read,
        "is_whole": read == size,
        "sha256": digest,
        "send_s": sent_s,
        "receive_s": received_s,
        "send_mb_s": size / sent_s / 1e6,
    }
    memory = {"grown_mib": grown, "peak_mib": peaks}
    return (
        Line("large message", size / received_s / 1e6, "MB/s received", details=speeds),
        Line("large message, memory", max(grown.values()), "MiB grown", None, MEMORY_BUDGET, memory),
    )


def main() -> None:
    """Run both cases and print the lines each time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="JSON lines")
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--payload", type=int, default=1024)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where folders are made: the disk that is measured")
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="coterie-benchmark-", dir=chosen.folder) as name,
        serving(_BARE) as (_, bare),
        serving(_COORDINATOR, f"{name}/server") as (pid, started),
    ):
        stage = Stage(Path(name), pid, started, chosen.payload)
        try:
            for _ in range(chosen.times):
                for line in latency(stage, Path(name), bare["url"], chosen.messages, chosen.payload):
                    show(line, as_json=chosen.json)
            for _ in range(chosen.times if chosen.gigabytes else 0):
                for line in large(stage, round(chosen.gigabytes * 1e9)):
                    show(line, as_json=chosen.json)
        finally:
            stage.close()


if __name__ == "__main__":
    main()
